"""FastDeploy's server as a child process of ``ernie serve``."""
