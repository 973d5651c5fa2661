"""Model directories for FastDeploy: exporter ``fastdeploy`` and the rules that the server has for its two layouts."""
