# make install make .venv with every package of epctx, from this clone
# make demo    set up without test tools, compile real networks, one of them for two EPs, run them, and say what happened
# make test-quick  the tests of what you changed, and the rules for all files
# make test    set up, lint, check types, run the whole suite
# make test-vendors  the tests with real vendors' EPs, and with a build of onnxruntime, in environments of their own (300 MB of wheels, Linux x86-64)
# make test-browser  the report page in Chromium (apt-get install chromium), driven by playwright
# make conformance  the ONNX project's cases, quantised twins of them and networks of programs on every route; RESULTS=FILE to go on later
# make conformance-vendors  the same table for real vendors' EPs, whose failures are not listed as known
# make zoo     today's exporters make some 250 models, which take every route (torch in an environment of its own, 6 GB; half an hour)
# make hosts   programs from the package index run by onnxruntime and by epctx in its place (an environment for each, Olive's has torch: 6 GB); HOSTS=... for some
# make lint    ruff, mypy and import-linter only
# make stress  tests that take hours rather than minutes
# make fuzz    ten minutes of fuzzing that follows coverage; FUZZ_SECONDS, FUZZ_TARGET (files, nodes, container, records) and FUZZ_CORPUS change time, what is read, and folder
# make bridge  the tests of onnxruntime-ep-epctx with its C half under AddressSanitizer and UndefinedBehaviorSanitizer
# make bench   every benchmarks/bench_*.py, and the plots of docs/contributing/benchmarks/benchmarks-loads.md
# make differential  what onnxruntime does and what epctx does, compared with the tables of docs/explanation/differences-*.md
# make minimums  the suite with the oldest libraries that pyproject.toml allows; DRAWN=500 for that many of its tests
# make release build every wheel into dist/ and check them where nothing else is installed
# make tables  write the tables of docs/ that come from the code
# make docs    the same, then build the documentation site into site/; warnings are errors
# make notebooks  execute docs/notebooks and store what their cells show
# make test-docs  build the site, check its pages, links and search, and execute the notebooks
# make size    expressions, modules, classes, and expressions in a line of code, of the core and of each package
# make clean   remove what these made

PYTHON ?= python3
# One more than two processors: tests wait for the processes that they start.
JOBS ?= 3
FUZZ_SECONDS ?= 600
FUZZ_TARGET ?= models
FUZZ_CORPUS ?= .fuzz/$(FUZZ_TARGET)/corpus

PROJECTS := pyproject.toml $(sort $(wildcard plugins/*/pyproject.toml))
# Without epctx-openvino: an installed EP of a vendor goes before the simulated one of its name. Its tests find it in its folder.
PLUGINS := $(filter-out plugins/epctx-openvino,$(patsubst %/pyproject.toml,%,$(filter plugins/%,$(PROJECTS))))
# On one command line: the plugins pin epctx-core, which pip must find here and not on an index.
EXTRAS = all,test
EDITABLE = --editable ".[$(EXTRAS)]" $(foreach plugin,$(PLUGINS),--editable ./$(plugin))
# A worker that dies ends the run: pytest-xdist 3.8 waits for ever after it has replaced one of loadfile's.
PYTEST = -m pytest -n $(JOBS) --dist loadfile --max-worker-restart 0
NETWORK_REPORTS = $(patsubst %,benchmarks/data/reports/network_%.json,resnet50 bert shufflenet_int8)
STRESS = -m pytest -m stress -o timeout=7200 -o faulthandler_timeout=7500

# In no other environment: an installed EP of a vendor goes before the simulated one of its name.
VENDORS := --editable ./plugins/epctx-openvino 'onnxruntime-qnn>=2.7' 'onnxruntime-ep-openvino>=1.8' 'nxrt-ep-cpu>=0.1.0.dev6' 'onnxruntime-genai>=0.18'
# A build of onnxruntime with an EP inside, which no package of ours may replace. Nor may one of the tests: `test` has some that need onnxruntime.
BUILD := 'onnxruntime-openvino>=1.24'
TESTERS := 'hypothesis>=6.100' 'ml_dtypes' 'psutil' 'pytest>=9.0' 'pytest-timeout>=2.3.1' 'pytest-xdist>=3.6.1'
PLATFORM := $(shell uname -sm)

# Folders from which tests import each other, as in pyproject.toml.
SUITE := tests:tests/campaigns:tests/project

.DELETE_ON_ERROR:

.PHONY: install demo test test-quick bytecode bridge test-browser test-docs test-vendors conformance conformance-vendors zoo hosts lint stress stress-vendors fuzz bench differential minimums release tables docs notebooks size clean

install: .venv/.installed

# With what the demo needs alone, unless there is an environment with all.
DEMO := $(if $(wildcard .venv/.installed),.venv,.venv-demo)

demo: $(DEMO)/.installed
	$(DEMO)/bin/python examples/demo.py

test: lint bytecode
	.venv/bin/python $(PYTEST)

test-quick: bytecode
	.venv/bin/python $(PYTEST) $$(.venv/bin/python .ci/quick.py)

# The suite starts thousands of processes: where PYTHONDONTWRITEBYTECODE is set, each would compile every module that it imports.
bytecode: .venv/.installed
	@.venv/bin/python -m compileall -q epctx_core plugins tests

test-browser: .venv/.browser
	.venv/bin/python $(PYTEST) tests/campaigns/browser

test-docs: .venv-docs/.installed
	@# In one process: the site is built once, in one folder.
	.venv-docs/bin/python -m pytest tests/campaigns/site

ifeq ($(PLATFORM),Linux x86_64)
test-vendors conformance-vendors stress-vendors: .venv-vendors/.installed
test-vendors: .venv-build/.installed

conformance-vendors:
	.venv-vendors/bin/python tests/campaigns/conformance $(RESULTS) --routes 'real_*' $(CONFORMANCE)

test-vendors:
	.venv-vendors/bin/python $(PYTEST) tests/campaigns/vendors
	.venv-build/bin/python $(PYTEST) tests/campaigns/builds

stress-vendors:
	.venv-vendors/bin/python $(STRESS) tests/campaigns/vendors
else
test-vendors conformance-vendors stress-vendors:
	@echo "Nothing was tested: $(VENDORS) are installed and tested on Linux x86_64 only; this is $(PLATFORM)."
endif

conformance: .venv/.installed
	.venv/bin/python tests/campaigns/conformance $(RESULTS) $(CONFORMANCE)

zoo: .venv/.installed
	.venv/bin/python tests/campaigns/zoo

hosts: .venv/.installed
	.venv/bin/python tests/campaigns/hosts $(HOSTS)

lint: .venv/.installed
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	PYTHONPATH=plugins/epctx-openvino/src .venv/bin/lint-imports --config plugins/epctx-openvino/pyproject.toml

stress: .venv/.viewers
	.venv/bin/python $(STRESS)
	$(MAKE) stress-vendors

fuzz: .venv-fuzz/.installed
	.venv-fuzz/bin/python tests/campaigns/fuzz/guided.py $(FUZZ_CORPUS) $(FUZZ_SECONDS) $(FUZZ_TARGET)

bridge: .venv/.installed
	.venv/bin/python plugins/onnxruntime-ep-epctx/tests/sanitized.py -n $(JOBS) --dist loadfile

bench: .venv/.plots
	@set -e; for script in benchmarks/bench_*.py; do \
		test -f "$$script" || { echo "There is no benchmarks/bench_*.py." >&2; exit 1; }; \
		echo "== $$script"; .venv/bin/python "$$script"; \
	done
	.venv/bin/python benchmarks/plot.py first-result docs/images/first-result.svg $(NETWORK_REPORTS)
	.venv/bin/python benchmarks/plot.py load-time docs/images/load-time.svg benchmarks/data/reports/chains.json

differential: .venv/.installed
	.venv/bin/python tests/campaigns/differential

tables: .venv/.installed
	PYTHONPATH=$(SUITE) .venv/bin/python -m documentation.tables
	PYTHONPATH=$(SUITE) .venv/bin/python -m documentation.command_line
	PYTHONPATH=$(SUITE) .venv/bin/python -m documentation.schemas
	.venv/bin/python plugins/epctx-onnxruntime/tests/drop_in/table.py

docs: tables .venv-docs/.installed
	.venv-docs/bin/python .ci/site.py site

notebooks: .venv-docs/.installed
	PYTHONPATH=$(SUITE) .venv-docs/bin/python -m documentation.notebooks

release: .venv/.installed
	.venv/bin/python tests/project/packaged/release.py

size: .venv/.installed
	@.venv/bin/python .ci/size.py

minimums: .venv-min/.installed
	.venv-min/bin/python $(PYTEST) $(if $(DRAWN),--drawn $(DRAWN))

clean:
	rm -rf build/pages dist site .venv .venv-build .venv-min .venv-demo .venv-docs .venv-fuzz .venv-vendors .venv-zoo .programs .zoo .hosts .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis demo-output
	find epctx_core plugins tests examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Drawing needs no part of epctx, nor does Model Explorer; groups are read from pyproject.toml by pip 25.1 and newer.
.venv/.plots: .venv/.installed
	.venv/bin/python -m pip install --quiet --group bench-plots
	@touch $@

.venv/.browser: .venv/.installed
	.venv/bin/python -m pip install --quiet --group browser
	@touch $@

# Without it one test is skipped.
.venv/.viewers: .venv/.installed
	.venv/bin/python -m pip install --quiet --group viewers || echo "Model Explorer was not installed; its test is skipped."
	@touch $@

.venv-demo/.installed: EXTRAS = all

.venv-build/.installed: EXTRAS = tools

.venv/.installed .venv-min/.installed .venv-demo/.installed .venv-docs/.installed .venv-fuzz/.installed .venv-vendors/.installed .venv-build/.installed: %/.installed: $(PROJECTS) $(wildcard plugins/*/native/*) Makefile .ci/minimums.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "epctx needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv --clear $*
	@echo '*' > $*/.gitignore
	@# Any pip that installs several editable projects together will do; a failed upgrade is no reason to stop.
	$*/bin/python -m pip install -qq --upgrade pip || echo "pip was not upgraded; going on with the one there is."
	@if test "$*" = .venv-min; then $*/bin/python .ci/minimums.py; fi > $*/constraints.txt
	if test "$*" = .venv-build; then $*/bin/python -m pip install --quiet $(BUILD); fi
	$*/bin/python -m pip install -qq --constraint $*/constraints.txt $(EDITABLE)
	if test "$*" = .venv-docs; then $*/bin/python -m pip install --quiet --group docs; fi
	if test "$*" = .venv-fuzz; then $*/bin/python -m pip install --quiet 'atheris>=3.0'; fi
	if test "$*" = .venv-build; then $*/bin/python -m pip install --quiet $(TESTERS); fi
	if test "$*" = .venv-vendors; then $*/bin/python -m pip install --quiet $(VENDORS); fi
	@touch $@
