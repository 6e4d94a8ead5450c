# Everything runs from .venv, which the first target that needs it makes. `make help` lists the targets.

PYTHON ?= python3
TORCH_VERSION ?= 2.13.0
# Unset: a CPU build where no NVIDIA device is seen, what pip brings elsewhere. An index of torch builds, or cpu or cuda (tools/torch_choice.py).
TORCH_INDEX_URL ?=
TORCH_BACKEND ?=
ARGS ?=
# Suites of test-external.
ONLY ?=
# What bench-peers compares with: vllm; llamacpp, openvino, ik (a GGUF file); cohort (itself).
PEER ?= vllm
# What kill-table breaks: cohort, vllm, llamacpp.
SERVER ?= cohort
# Test files side by side. Most of a server's start is waiting for one core.
TEST_JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
# What running needs, and on top of it what tests, checks and benchmarks need.
STAMP := $(VENV)/.installed-torch-$(TORCH_VERSION)
DEV := $(VENV)/.workshop-torch-$(TORCH_VERSION)
# Interprets the GPU kernels in tests. CUDA builds of torch bring it along, CPU builds have no use for it otherwise.
TRITON_VERSION ?= 3.6.0
TRITON := $(VENV)/.triton-$(TRITON_VERSION)
# Files of unit tests that take less than a second or so and import no torch, from each room of server, engine and contract.
FAST := tests/fast.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check
REPORT := .reports/junit.xml
REPORT_ALL := .reports/junit-all.xml
PYTEST := $(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile

# On a machine with a GPU there may be no network: no environment is made, the Python with torch is PYTHON.
HERE := $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

# Tests start hundreds of processes, each of which would compile the sources anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install first-minutes dev serve demo test test-fast test-all test-external test-gpu check check-types check-but-types api-docs openapi bench bench-peers kill-table parity format promises lock gpu-check gpu-history gpu-tune gpu-wheels clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Variables: PYTHON, TORCH_VERSION, TORCH_INDEX_URL, TORCH_BACKEND (cpu, cuda), and ARGS for serve, bench, bench-peers and the tests; ONLY for test-external; PEER=vllm|llamacpp|openvino|ik|cohort for bench-peers."

install: $(STAMP)  ## make .venv with what running the server needs: packages, CPU kernels, the default model

dev: $(DEV)  ## the server on the echo executor, started anew when the code changes; adds to .venv what tests and checks need
	@exec $(BIN)/python -m tools.dev_server $(ARGS)

serve: $(STAMP)  ## start the server; ARGS="MODEL --port 8000 ..."
	@exec $(BIN)/cohort serve $(ARGS)

demo: $(STAMP)  ## kill the executor under 32 live streams and compare each answer
	@exec $(BIN)/cohort demo $(ARGS)

test: $(DEV) $(TRITON)  ## unit and simulation tests, and the first of the end-to-end tests: under 5 minutes on two cores
	$(PYTEST) -m "not long and not external and not gpu" --few --junitxml=$(REPORT) $(ARGS)

test-fast: $(DEV)  ## the unit tests of server, engine and contract that tests/fast.txt names: under 30 s on two cores
	$(PYTEST) -q -m "not long and not external and not gpu" @$(FAST) $(ARGS)

test-all: $(DEV) $(TRITON)  ## everything that this machine can run by itself; ARGS="--short" as CI, "--sweeps" all cases of sweeps, "--full tests/chaos" at full size
	$(PYTEST) -m "not external and not gpu" --junitxml=$(REPORT_ALL) $(ARGS)

test-external: $(DEV)  ## suites with clients, browsers, Prometheus, Ray, trained models, buildah; ONLY="console ray", ARGS="--short" as CI (tests/external.py)
	@$(BIN)/python -m tests.external --only "$(ONLY)" $(ARGS)

test-gpu:  ## tests/gpu: on a GPU where there is one; interpreted, and every kernel compiled for an H200, where there is none
	@$(if $(wildcard /dev/nvidia[0-9]*),,$(MAKE) --no-print-directory $(TRITON))
	$(HERE) -m pytest tests/gpu $(if $(wildcard /dev/nvidia[0-9]*),,--full) $(ARGS)

# A suite by its name: `make test-image` is `make test-external ONLY=image`.
test-%:
	@$(MAKE) --no-print-directory test-external ONLY=$*

first-minutes: $(STAMP)  ## README's first screen as it is written, recorded in an empty Debian: silences, seconds to the first answer; needs root
	tools/ops/packages.sh mmdebstrap git
	$(BIN)/python -m tools.first_minutes.root $(ARGS)

check: $(DEV) check-but-types check-types  ## format, lint, types, imports, promises; with -j2 -O types beside the rest

check-types: $(DEV) $(TRITON)
	$(BIN)/mypy

check-but-types: $(DEV) $(TRITON)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.structure
	$(BIN)/python -m tools.promises check
	$(BIN)/python -m tools.api_docs check
	$(BIN)/python -m tools.settings_docs check
	$(BIN)/python -m tools.benchmark_block check
	$(BIN)/python -m tools.gpu_check.page check
	$(BIN)/python -m tools.migrate_docs check
	$(BIN)/python -m tools.foreign_docs check
	$(BIN)/python -m tools.missing_docs check
	$(BIN)/python -m tools.metrics_docs check
	$(BIN)/python -m tools.decisions check
	$(BIN)/python -m tools.kernel_floors check
	$(BIN)/python -m tests.clients.page check
	$(BIN)/python -m tests.llamacpp.page check
	$(BIN)/python -m benchmarks.kill_table.page check
	$(BIN)/python -m tools.parity check

api-docs: $(DEV)  ## rewrite docs/api.md, docs/settings.md, docs/foreign-flags.md and the generated tables of other pages
	$(BIN)/python -m tools.api_docs write
	$(BIN)/python -m tools.settings_docs write
	$(BIN)/python -m tools.migrate_docs write
	$(BIN)/python -m tools.foreign_docs write
	$(BIN)/python -m tools.missing_docs write
	$(BIN)/python -m tools.metrics_docs write
	$(BIN)/python -m tests.clients.page write
	$(BIN)/python -m benchmarks.kill_table.page write

openapi: $(DEV)  ## write the description of the API, as a server returns it, to dist/openapi.json
	mkdir -p dist && $(BIN)/python -m tools.api_docs write-json dist/openapi.json

bench: $(STAMP)  ## measure a running server; ARGS="http://127.0.0.1:8000 --workload steady"
	@exec $(BIN)/cohort bench $(ARGS)

bench-peers: $(DEV)  ## this server and another in turn, five rounds for README's headline: vLLM, or PEER=llamacpp|openvino|ik; ARGS="--rounds 2 --no-headline"
	$(BIN)/python -m benchmarks.peers --peer $(PEER) $(ARGS)

kill-table: $(DEV)  ## what eight kinds of calls see while the server is killed, hangs, drains ...; SERVER=vllm|llamacpp; ARGS="--rounds 1"
	$(BIN)/python -m benchmarks.kill_table --server $(SERVER) $(ARGS)

parity: $(DEV)  ## compare every model family with transformers and rewrite the table in docs/models.md
	$(BIN)/python -m pytest -q tests/executors/llm/model/test_parity.py --junitxml=$(REPORT)
	$(BIN)/python -m tools.parity write

format: $(DEV)  ## format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

promises: $(DEV) $(TRITON)  ## rewrite docs/promises.md from docs/promises.yaml
	$(BIN)/python -m tools.promises write

lock: $(DEV)  ## write the versions installed now to constraints.txt
	$(PIP) freeze --exclude-editable | sed -E '/^-e |@|^triton==/d; s/\+[a-z0-9.]+$$//' > constraints.txt

gpu-check:  ## check what needs a GPU, in two calls of nine and two minutes; ARGS="--call 2", "--plan", "--only cohort"
	@$(HERE) -m tools.gpu_check $(ARGS)

gpu-history:  ## the course of each figure over the log of GPU runs; ARGS="--part kernels --all"
	@$(HERE) -m tools.gpu_check.history $(ARGS)

gpu-tune:  ## time candidates for the kernels' tuning table on this GPU, 30 s; prints rows; ARGS="--only decode_attention"
	@$(HERE) -m tools.gpu_tune $(ARGS)

gpu-wheels:  ## fetch into .gpu-wheels/ what gpu-check needs beside torch, for a machine without a network
	$(HERE) -m tools.gpu_check.wheels

clean:  ## remove .venv, caches and build results
	rm -rf $(VENV) build dist .reports .gpu-wheels .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or later is needed. On Debian: apt install python3 python3-venv. Elsewhere: make PYTHON=/path/to/python3"; \
	  exit 1; } >&2
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments. On Debian: apt install python3-venv"; exit 1; } >&2
	@$(PYTHON) -m tools.install venv $(VENV)

$(TRITON): $(DEV)
	$(BIN)/python -c 'import triton' 2>/dev/null || $(PIP) install --no-deps triton==$(TRITON_VERSION)
	@touch $@

# Torch first, alone and pinned: no later package finds a reason to fetch another build.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@$(BIN)/python -m tools.install all --torch $(TORCH_VERSION) --index "$(TORCH_INDEX_URL)" --backend "$(TORCH_BACKEND)"
	@rm -f $(VENV)/.installed-torch-*
	@touch $@

$(DEV): $(STAMP)
	@$(BIN)/python -m tools.install dev
	@rm -f $(VENV)/.workshop-torch-*
	@touch $@
