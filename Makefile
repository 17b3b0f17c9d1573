# Every task of the project. `make help` lists them.
# They need Python 3.11 or newer and pip; everything else is put into .venv.

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=

PY    := $(VENV)/bin/python
VLLM_VENV := .venv-vllm
VLLM_PY   := $(VLLM_VENV)/bin/python
STAMP := $(VENV)/.up-to-date
GEN   := build/gen-venv
ALONE := deploy/lo-only
NPU_WHEEL := build/torch-npu-2.13.0
VLLM_ASCEND := build/vllm-ascend-0.25.1rc1
GRAFANA := build/grafana
KERNELS := $(wildcard eplb_service/policies/kernels/*.c)
BUILT   := $(wildcard eplb_service/policies/kernels/_loops*.so)

DEMO_MODULE  := benchmarks.demo.main
BENCH_MODULE := benchmarks.run
PLACEMENT_MODULE := benchmarks.placement

# What the fast gate leaves out, and what no machine without the hardware or the engine can run.
HARDWARE := npu_hardware or vllm or matrix or cluster
HEAVY    := ray or processes or slow or npu_schema or npu_emulated or $(HARDWARE)

export PIP_CONSTRAINT := requirements/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help deps tools demo ctl page matrix check static fmt fmt-check lint types walls proto unit test bench \
        test-vllm test-cluster demo-vllm bench-vllm \
        bench-placement fuzz gen cli-docs proto-baseline clean api-docs chart-tools grafana-packages chart-schema deps-kube test-kube
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@echo "make demo            the whole system on this machine, two minutes (ARGS=--keep leaves it up)"
	@echo "make ctl ARGS=status eplbctl against the demo that make demo ARGS=--keep left up"
	@echo "make page            that demo's page in a browser of this machine"
	@echo "make check           the fast gate: format, lint, types, walls, proto, unit tests"
	@echo "make test            everything: the gate's static part, then all tests"
	@echo "make demo-vllm       vLLM under requests while experts move (needs $(VLLM_VENV))"
	@echo "make bench-vllm      vLLM's own balancer, ours and none on the same requests, in $(VLLM_VENV)"
	@echo "make test-vllm       the plugin inside real vLLM on the CPU, in $(VLLM_VENV) (3 GB)"
	@echo "make npu-wheel       torch-npu beside the environment, for the tests of the Ascend calls"
	@echo "make test-npu        on a machine with NPUs, in its own environment (PYTHON=...); writes a report"
	@echo "make test-cluster    the chart's keeper on three Ray nodes of this machine, ten minutes"
	@echo "make bench           measure; prints figures and writes build/bench-*.json"
	@echo "make matrix          every exchange mode x format x activation x routing against float64"
	@echo "make bench-placement policies side by side: balance against moves; docs/placement.md"
	@echo "make fuzz            the protocol under 10,000 seeds of faults (SEEDS=N) and 19 mutations"
	@echo "make soak            real processes killed, stopped and cut off while experts move (MINUTES=30)"
	@echo "make failover        leaders killed and stopped; seconds until a standby has every rank"
	@echo "make load            one controller under 1,024 agents, and an hour of reports: latency, memory"
	@echo "make fmt             format the code"
	@echo "make gen             generate proto/gen from proto/eplb/v1"
	@echo "make proto-baseline  accept proto/eplb/v1 as what later changes must stay compatible with"
	@echo "make chart-schema    write the settings into the chart's values.schema.json"
	@echo "make test-kube       the chart on a real kube-apiserver and etcd (make deps-kube first, as root;"
	@echo "                     the first run builds the server, ten minutes)"
	@echo "make audit           hold the pinned packages against the list of known holes (needs the network)"
	@echo "make cli-docs        write docs/cli.md from the command line of eplbctl"
	@echo "make screenshots     write docs/images/page-*.png: a real controller in headless Chromium"
	@echo "make api-docs        write docs/api.md from docstrings and proto comments"
	@echo "make deps            install the Debian packages of requirements/apt.txt (as root)"
	@echo "make clean           remove what these commands made, .venv too"

# --- set-up -------------------------------------------------------------------------------------

# What was built lies beside its source: a fresh checkout around an older $(VENV) lacks it.
ifeq ($(BUILT),)
.PHONY: $(STAMP) $(VLLM_VENV)/.up-to-date
endif

$(STAMP): requirements/dev.txt requirements/constraints.txt pyproject.toml $(KERNELS)
	@echo "== set up $(VENV)"
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(PYTHON) must be Python 3.11 or newer with venv (Debian: python3-venv);" \
	      "name another with make PYTHON=..." >&2; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "== install Python packages: minutes the first time, in which pip prints nothing"
	$(PY) -m pip install --quiet -r requirements/dev.txt
	$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# The packages of requirements/apt.txt whose command is not there, each once.
MISSING = grep -v '^\#' requirements/apt.txt | while read -r package command; do \
              [ -z "$$command" ] || command -v "$$command" >/dev/null || echo "$$package"; \
          done | sort -u

deps:
	@missing=$$($(MISSING)); \
	if [ -z "$$missing" ]; then echo "== deps: nothing is missing"; exit 0; fi; \
	echo "== deps: install" $$missing; \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends $$missing

tools:
	@missing=$$($(MISSING)); \
	[ -z "$$missing" ] || { echo "missing Debian packages:" $$missing \
	    "(make deps installs them, as root)" >&2; exit 1; }

# --- run ----------------------------------------------------------------------------------------

demo: $(STAMP)
	@$(ALONE) --name build/demo.pid $(PY) -m $(DEMO_MODULE) $(ARGS)

ctl: $(STAMP)
	@$(ALONE) --join build/demo.pid $(VENV)/bin/eplbctl $(ARGS)

page: $(STAMP)
	@$(PY) -m benchmarks.demo.window build/demo.pid $(ARGS)

# The full product of the equivalence matrix, 101,376 cases in 3 x 64 parts; `make test` runs a
# pairwise cover of it. On two cores with little else to do a part took 20 to 35 s on one rank, 70 on
# two and two minutes on four: four hours in all. A third of a case is packing experts, a third the
# reference, a sixth the step; ranks wait for each other besides. One part of each: ARGS="-k part07".
matrix: $(STAMP)
	$(PY) -m pytest -q -m matrix tests/runtime/test_matrix.py $(ARGS)

bench: $(STAMP)
	@mkdir -p build
	$(PY) -m $(BENCH_MODULE) $(ARGS)

# One thread for every policy, so that their times compare.
bench-placement: $(STAMP)
	@mkdir -p build
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(PY) -m $(PLACEMENT_MODULE) $(ARGS)

# Seeds of the simulator, and every mutation of the protocol; build/fuzz-summary.json.
SEEDS ?= 10000

fuzz: $(STAMP)
	$(PY) -m tests.protocol.fuzz --seeds $(SEEDS) $(ARGS)

# Real processes under real faults, in namespaces; build/soak-summary.json.
MINUTES ?= 30

.PHONY: soak
soak: tools $(STAMP)
	$(ALONE) $(PY) -m tests.soak.main --minutes $(MINUTES) $(ARGS)

.PHONY: load
load: $(STAMP)
	@mkdir -p build
	$(PY) -m benchmarks.load $(ARGS)

.PHONY: failover
failover: tools $(STAMP)
	$(ALONE) $(PY) -m tests.failover.main $(ARGS)

# --- check --------------------------------------------------------------------------------------

# Two halves beside each other, since each needs one core: the static part with the runtime's unit
# tests, whose words are shown at the end, and all other unit tests.
BESIDE := tests/runtime tests/npu moe_runtime
check: $(STAMP) chart-tools
	@mkdir -p build; { $(MAKE) --no-print-directory static && \
	    $(MAKE) --no-print-directory unit ARGS="$(BESIDE) $(ARGS)"; } >build/beside.log 2>&1 & \
	beside=$$!; trap 'kill $$beside; exit 130' INT TERM; \
	unit=0; $(MAKE) --no-print-directory unit ARGS="$(BESIDE:%=--ignore=%) $(ARGS)" || unit=$$?; \
	code=0; wait $$beside || code=$$?; \
	cat build/beside.log; \
	[ $$unit -eq 0 ] || echo "== check: unit tests failed, see above" >&2; \
	[ $$code -eq 0 ] || echo "== check: the static part or the runtime failed, see above" >&2; \
	[ $$unit -eq 0 ] && [ $$code -eq 0 ] && echo "== check: all good"

static: fmt-check lint types walls proto

fmt: $(STAMP)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix-only --quiet .
	@test ! -e proto/eplb || $(VENV)/bin/buf format --write proto

fmt-check: $(STAMP)
	@echo "== format"
	$(VENV)/bin/ruff format --check --quiet . || { echo "make fmt formats" >&2; exit 1; }
	$(VENV)/bin/buf format --diff --exit-code proto

lint: $(STAMP)
	@echo "== lint"
	$(VENV)/bin/ruff check --quiet .
	$(VENV)/bin/shellcheck deploy/lo-only deploy/kube/build-apiserver .ci/run
	$(VENV)/bin/hadolint --config deploy/images/hadolint.yaml deploy/images/*.Dockerfile

types: $(STAMP)
	@echo "== types"
	$(VENV)/bin/basedpyright --pythonpath $(PY) --level error

walls: $(STAMP)
	@echo "== walls"
	$(VENV)/bin/lint-imports --no-logo

proto: $(STAMP)
	@echo "== proto"
	$(VENV)/bin/buf lint proto
	$(VENV)/bin/buf breaking proto --against proto/baseline.binpb

unit: $(STAMP) chart-tools
	@echo "== unit tests"
	$(PY) -m pytest -q -m "not ($(HEAVY))" $(ARGS)

# Pytest ends with 5 when it found no test at all; that is a failure here, and says so.
test: tools static chart-tools npu-wheel grafana-packages
	@echo "== all tests"
	$(ALONE) $(PY) -m pytest -q -m "not ($(HARDWARE))" $(ARGS) || { code=$$?; \
	    [ $$code -ne 5 ] || echo "no test was found: tests/ or the selection is broken" >&2; \
	    exit $$code; }

test-cluster: tools chart-tools $(STAMP)
	@echo "== tests on three Ray nodes"
	$(PY) -m pytest -q -m cluster tests/deploy $(ARGS)

# Before the tests, which run where there is no network. package.json is copied last: it says done.
$(GRAFANA)/package.json: tests/observe/grafana/package.json
	@echo "== fetch Grafana's packages"
	mkdir -p $(GRAFANA)/new
	cp $< $(GRAFANA)/new/
	cd $(GRAFANA)/new && npm install --no-audit --no-fund --no-package-lock --ignore-scripts \
	    --loglevel=error
	rm -rf $(GRAFANA)/node_modules
	mv $(GRAFANA)/new/node_modules $(GRAFANA)/
	cp $< $@

grafana-packages: tools $(GRAFANA)/package.json

# Beside the environment, never in it: installed there, it breaks `import torch` without CANN.
$(NPU_WHEEL)/.up-to-date: requirements/npu-schema.txt | $(STAMP)
	@echo "== fetch torch-npu"
	$(PY) -m pip install --quiet --no-deps --require-hashes --upgrade --target $(NPU_WHEEL) \
	    -r requirements/npu-schema.txt
	@touch $@

.PHONY: npu-wheel test-npu
npu-wheel: $(NPU_WHEEL)/.up-to-date

# The environment of an Ascend machine is its owner's: torch, torch_npu and CANN must fit its driver.
test-npu:
	$(PYTHON) -m pytest -v -p no:cacheprovider -m npu_hardware tests/npu $(ARGS)

# Real vLLM has its own environment, since it pins what it needs more tightly than we do.
# Further cases: make test-vllm ARGS='-m vllm'.
$(VLLM_VENV)/.packages: requirements/vllm.txt requirements/constraints.txt
	@echo "== set up $(VLLM_VENV)"
	test -x $(VLLM_PY) || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PY) -m pip install --quiet --no-deps torch==2.13.0
	$(VLLM_PY) -m pip install --quiet --no-deps --require-hashes -r requirements/vllm.txt
	@touch $@

$(VLLM_VENV)/.up-to-date: $(VLLM_VENV)/.packages pyproject.toml $(KERNELS)
	$(VLLM_PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Its dist-info would have vLLM take this machine for an Ascend one.
$(VLLM_ASCEND)/.up-to-date: requirements/vllm-ascend.txt | $(VLLM_VENV)/.up-to-date
	@echo "== fetch vllm-ascend"
	rm -rf $(VLLM_ASCEND)
	$(VLLM_PY) -m pip install --quiet --no-deps --require-hashes --target $(VLLM_ASCEND) \
	    -r requirements/vllm-ascend.txt
	rm -rf $(VLLM_ASCEND)/*.dist-info
	@touch $@

test-vllm: tools $(VLLM_VENV)/.up-to-date $(VLLM_ASCEND)/.up-to-date
	@echo "== tests with real vLLM"
	$(ALONE) $(VLLM_PY) -m pytest -q -m "vllm and not slow" tests/vllm $(ARGS)

demo-vllm: tools $(VLLM_VENV)/.up-to-date
	@mkdir -p build
	@$(ALONE) $(VLLM_PY) -m benchmarks.demo_vllm.main $(ARGS)

# One balancer against another, in turns in one run: nothing else should be busy.
bench-vllm: tools $(VLLM_VENV)/.up-to-date
	@mkdir -p build
	@$(ALONE) $(VLLM_PY) -m benchmarks.balance_vllm.main $(ARGS)

# --- the chart -----------------------------------------------------------------------------------

HELMS := build/tools/helm-3/helm build/tools/helm-4/helm
APISERVER ?= $(HOME)/.cache/eplb/kube-apiserver

chart-tools: $(HELMS)

build/tools/helm-%/helm: deploy/kube/get_helm.py | $(STAMP)
	@echo "== fetch helm $*"
	$(PY) deploy/kube/get_helm.py $* build/tools/helm-$*

chart-schema: $(STAMP)
	$(PY) -m tests.deploy.settings_schema

deps-kube:
	grep -v '^#' deploy/kube/apt.txt | while read -r package file; do \
	    [ -e "$$file" ] || echo "$$package"; done | \
	    DEBIAN_FRONTEND=noninteractive xargs -r apt-get install -y -qq --no-install-recommends

# Outside of `make test`, as it builds a server.
test-kube: $(STAMP) chart-tools
	deploy/kube/build-apiserver $(APISERVER)
	EPLB_TEST_APISERVER=$(APISERVER) $(PY) -m pytest -v -p no:cacheprovider tests/deploy/kube_walk.py $(ARGS)

# --- proto --------------------------------------------------------------------------------------

$(GEN)/.up-to-date: requirements/proto-gen.txt
	@echo "== set up $(GEN)"
	test -x $(GEN)/bin/python || $(PYTHON) -m venv $(GEN)
	$(GEN)/bin/python -m pip install --quiet -r requirements/proto-gen.txt
	@touch $@

# MANIFEST says which sources the generated files came from; tests/architecture compares.
gen: $(GEN)/.up-to-date
	@echo "== generate proto/gen"
	rm -rf proto/gen
	mkdir -p proto/gen/eplb/v1
	cd proto && PATH="../$(GEN)/bin:$$PATH" ../$(GEN)/bin/python -m grpc_tools.protoc -I. \
	    --python_out=gen --mypy_out=quiet:gen --grpc_python_out=gen --mypy_grpc_out=quiet:gen \
	    eplb/v1/*.proto
	echo '"""Generated from proto/eplb; see proto/gen/MANIFEST."""' >proto/gen/eplb/__init__.py
	echo '"""Generated from proto/eplb/v1."""' >proto/gen/eplb/v1/__init__.py
	cd proto && LC_ALL=C && export LC_ALL && \
	    sha256sum eplb/v1/*.proto gen/eplb/*.py gen/eplb/v1/*.py gen/eplb/v1/*.pyi >gen/MANIFEST

# The list of known holes comes from the network; where pip-audit or that list cannot be had, it says so
# and fails: nothing was audited then. Without --strict it would skip what it does not find, and be content.
.PHONY: audit
audit: $(STAMP)
	$(PY) -m pip check
	$(PY) -m venv build/audit-venv
	build/audit-venv/bin/pip install --quiet pip-audit
	build/audit-venv/bin/pip-audit --strict --no-deps --disable-pip -r requirements/dev.txt || { \
	    echo "audit: holes were found above, or the list of known ones cannot be reached" >&2; exit 1; }

cli-docs: $(STAMP)
	$(PY) -m eplb_service.cli.manual >docs/cli.md

api-docs: $(STAMP)
	$(PY) -m tests.docs.reference

# The page of a real controller in a real browser, as docs/page.md shows it.
.PHONY: screenshots
screenshots: tools $(STAMP)
	@$(ALONE) $(PY) -m tests.page.screenshots

proto-baseline: $(STAMP)
	$(VENV)/bin/buf build proto --exclude-source-info -o proto/baseline.binpb

clean:
	rm -rf build dist $(VENV) $(VLLM_VENV) *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
