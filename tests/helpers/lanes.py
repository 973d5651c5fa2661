"""Which files `make test-runs` has, and `make test` has not."""

#: what `make test-runs` has: whole runs, several processes, real servers, and the commands of documentation pages
RUNS = (
    "plugins/commands/quantize/tests/test_streamed_",
    "plugins/launchers/elastic_nodes/tests/test_elastic_runs",
    "plugins/methods/remote_distill/tests/test_remote_distill_runs",
    "plugins/models/ernie45_vl/tests/test_vl_layouts",
    "plugins/models/paddleocr_vl/tests/test_ocr_layouts",
    "plugins/parallel/hybrid_parallel/",
    "plugins/parallel/wan/tests/test_wan_runs",
    "plugins/servers/disaggregated/",
    "plugins/servers/fastdeploy_server/",
    "tests/docs/test_pages_run",
    "tests/e2e/",
    "tests/unit/accelerators/",
    "tests/unit/benchmarks/",
)
