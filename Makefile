# Everything runs from .venv, which the first target that needs it makes. `make help` lists the targets.

PYTHON ?= python3
TORCH_VERSION ?= 2.13.0
# Unset: a CPU build where no NVIDIA device is seen, what pip brings elsewhere. An index of torch builds, or cpu or cuda (tools/torch_choice.py).
TORCH_INDEX_URL ?=
TORCH_BACKEND ?=
ARGS ?=
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
REPORT_LONG := .reports/junit-long.xml
REPORT_LONG_CI := .reports/junit-long-ci.xml
# Finds faults of accessibility in a page; for tests of the console alone.
AXE_VERSION := 4.14.1
AXE := .reports/axe/node_modules/axe-core/axe.min.js
# Carries the Compose specification's schema; apart from .venv, which has other versions of what it needs.
SCHEMA_VERSION := 0.39.0
SCHEMA_TOOL := .reports/schema-venv-$(SCHEMA_VERSION)/bin/check-jsonschema
RAY_PYTHON := .reports/ray-venv/bin/python
# Kubernetes' schemas, apart for the same reason.
KUBERNETES_VERSION := 1.37.0
KUBERNETES_TOOL := .reports/kubernetes-venv/bin/kubernetes-validate

# Tests start hundreds of processes, each of which would compile the sources anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install first-minutes dev serve demo test test-fast test-long test-long-ci test-sweeps sim chaos soak soak-ci hostile test-clients test-clients-ci test-agents test-real test-real-ci test-ops test-ops-ci test-image test-ray test-ray-ci test-console check api-docs fuzz bench bench-peers kill-table parity format promises lock gpu-check gpu-compile gpu-wheels clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Variables: PYTHON, TORCH_VERSION, TORCH_INDEX_URL, TORCH_BACKEND (cpu, cuda), and ARGS for serve, test, test-long, soak, test-clients, bench and bench-peers; PEER=vllm|llamacpp|openvino|ik|cohort for bench-peers."

install: $(STAMP)  ## make .venv with what running the server needs: packages, CPU kernels, the default model

dev: $(DEV)  ## the server on the echo executor, started anew when the code changes; adds to .venv what tests and checks need
	@exec $(BIN)/python -m tools.dev_server $(ARGS)

serve: $(STAMP)  ## start the server; ARGS="MODEL --port 8000 ..."
	@exec $(BIN)/cohort serve $(ARGS)

demo: $(STAMP)  ## kill the executor under 32 live streams and compare each answer
	@exec $(BIN)/cohort demo $(ARGS)

test: $(DEV) $(TRITON)  ## unit and simulation tests, and the first of the end-to-end tests
	$(BIN)/python -m pytest -m "not slow and not gpu and not long" -n $(TEST_JOBS) --dist loadfile --junitxml=$(REPORT) $(ARGS)

test-fast: $(DEV)  ## the unit tests of server, engine and contract that tests/fast.txt names: under 30 s on two cores
	$(BIN)/python -m pytest -q -m "not slow and not gpu and not long" -n $(TEST_JOBS) --dist loadfile @$(FAST) $(ARGS)

test-long: $(DEV) $(TRITON)  ## the other end-to-end tests: commands, starts and ends, deaths, overload, hostile inputs; the longest others
	$(BIN)/python -m pytest -m "long and not slow and not gpu" -n $(TEST_JOBS) --dist loadfile --junitxml=$(REPORT_LONG) $(ARGS)

test-long-ci: $(DEV) $(TRITON)  ## the same without what is marked `extended`: other layouts, shapes, dtypes and APIs of what runs
	$(BIN)/python -m pytest --short -m "long and not slow and not gpu" -n $(TEST_JOBS) --dist loadfile --junitxml=$(REPORT_LONG_CI) $(ARGS)

test-sweeps: $(DEV) $(TRITON)  ## every case of the tests of which the other targets run each n-th: kernels by shape and layout, texts by format
	$(BIN)/python -m pytest --sweeps -m "not slow" -n $(TEST_JOBS) --dist loadfile $(ARGS)

sim: $(DEV)  ## 10,000 seeds of the deterministic simulation; ARGS="--seeds N --first N"
	$(BIN)/python -m tests.sim $(ARGS)

test-clients: $(DEV)  ## real clients, each in its own environment, against a live server; ARGS="litellm lm-eval"
	$(BIN)/python -m tests.clients $(ARGS)

test-clients-ci: $(DEV)  ## the same without those that install torch (vLLM's, guidellm), and lm-eval, dspy and llama-index, whose installations take as long as the others together
	$(BIN)/python -m tests.clients --without-torch --without lm-eval --without dspy --without llama-index $(ARGS)

test-agents: $(DEV)  ## Codex, Claude Code, OpenCode and Qwen Code against a scripted model, and one session of each with Gemma 3 270M; needs npm, and fetches 1.3 GB the first time; ARGS="-k codex", ARGS="-k trained"
	$(BIN)/python -m pytest -m slow tests/agents $(ARGS)

test-real: $(DEV)  ## two trained models beside transformers, in float32 and int8, and from their GGUF files, and the default model; fetches 92 and 241 MiB the first time
	$(BIN)/python -m pytest -s -m slow tests/e2e/test_real_models.py tests/e2e/test_real_int8.py tests/e2e/test_real_gguf.py tests/e2e/test_default_model.py $(ARGS)

test-real-ci: $(DEV)  ## the smaller of the two
	$(BIN)/python -m pytest -s -m slow tests/e2e/test_real_models.py tests/e2e/test_real_int8.py tests/e2e/test_real_gguf.py tests/e2e/test_default_model.py -k smollm2

chaos: $(DEV)  ## kill, stop and crash the executor under streams of every kind
	$(BIN)/python -m pytest tests/chaos -s $(ARGS)

soak: $(DEV)  ## half an hour under everything at once: memory, descriptors and KV blocks stay flat; ARGS="--minutes 30"
	$(BIN)/python -m tests.soak $(ARGS)

soak-ci: $(DEV)  ## the same for two minutes
	$(BIN)/python -m tests.soak --minutes 2 $(ARGS)

hostile: $(DEV)  ## 10,000 hostile inputs: each is refused, and two streams beside them do not change
	$(BIN)/python -m pytest -m slow tests/hostile -s $(ARGS)

test-ops: test-ops-ci test-image  ## prove image, compose file, dashboard and alerts; needs root for the image

test-image: $(DEV)  ## build the Dockerfile's targets with buildah; look into the image, serve from it, end it; needs root and 6 GB of disk
	tools/ops/packages.sh buildah mmdebstrap
	$(BIN)/python -m tools.ops.image_proof $(if $(TORCH_INDEX_URL),--torch-index-url $(TORCH_INDEX_URL)) $(ARGS)

test-ops-ci: $(DEV) $(SCHEMA_TOOL) $(KUBERNETES_TOOL)  ## the quick part: Prometheus, the compose file and the Helm chart
	tools/ops/packages.sh prometheus
	$(BIN)/python -m tools.ops.helm .reports/helm
	$(SCHEMA_TOOL) --builtin-schema vendor.compose-spec docker-compose.yml
	$(BIN)/python -m pytest -m slow tests/ops

test-ray: $(DEV)  ## replicas on a real Ray, in an environment of its own: streams, killed replicas, the commands; 0.3 GB the first time
	$(BIN)/python -m tests.ray.environment
	$(RAY_PYTHON) -m pytest -s -m slow tests/ray $(ARGS)

test-ray-ci: $(DEV)  ## the first of them: equal streams, a killed replica, keys
	$(BIN)/python -m tests.ray.environment
	$(RAY_PYTHON) -m pytest -s -m slow tests/ray/test_ray_streams.py -k "one_server or killed_replica or key"

test-console: $(DEV) $(AXE)  ## the console in Debian's Chromium: chat, kill, stories, accessibility, pages of others, behind nginx; needs npm
	tools/ops/packages.sh chromium nginx
	$(BIN)/python -m pytest -m slow tests/e2e/test_console*.py tests/e2e/test_subpath.py -n $(TEST_JOBS) --dist loadfile $(ARGS)

first-minutes: $(STAMP)  ## README's first screen as it is written, recorded in an empty Debian: silences, seconds to the first answer; needs root
	tools/ops/packages.sh mmdebstrap git
	$(BIN)/python -m tools.first_minutes.root $(ARGS)

check: $(DEV) $(TRITON)  ## format, lint, types, imports, promises
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.structure
	$(BIN)/python -m tools.promises check
	$(BIN)/python -m tools.api_docs check
	$(BIN)/python -m tools.settings_docs check
	$(BIN)/python -m tools.benchmark_block check
	$(BIN)/python -m tools.migrate_docs check
	$(BIN)/python -m tools.foreign_docs check
	$(BIN)/python -m tools.missing_docs check
	$(BIN)/python -m tools.metrics_docs check
	$(BIN)/python -m tests.clients.page check
	$(BIN)/python -m benchmarks.kill_table.page check
	$(BIN)/python -m tools.parity check

api-docs: $(DEV)  ## rewrite docs/api.md, docs/openapi.json, docs/settings.md, docs/foreign-flags.md and the generated tables of other pages
	$(BIN)/python -m tools.api_docs write
	$(BIN)/python -m tools.settings_docs write
	$(BIN)/python -m tools.migrate_docs write
	$(BIN)/python -m tools.foreign_docs write
	$(BIN)/python -m tools.missing_docs write
	$(BIN)/python -m tools.metrics_docs write
	$(BIN)/python -m tests.clients.page write
	$(BIN)/python -m benchmarks.kill_table.page write

fuzz: $(DEV)  ## send what the API's description allows, and what it does not, for five minutes or so
	$(BIN)/python -m pytest -s -m slow tests/e2e/test_fuzz_schema.py

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

# On a machine with a GPU there may be no network: no environment is made, the Python with torch is PYTHON.
HERE := $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))

gpu-check:  ## check everything that needs a GPU, nine minutes a call; call it again to go on; ARGS="--only cohort"
	@$(HERE) -m tools.gpu_check $(ARGS)

gpu-compile: $(DEV) $(TRITON)  ## compile every GPU kernel for an H200; needs no GPU
	$(BIN)/python -m pytest -m slow tests/gpu/test_compiled.py -s $(ARGS)

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

$(SCHEMA_TOOL):
	$(PYTHON) -m venv --clear $(@D:/bin=)
	$(@D)/python -m pip --disable-pip-version-check install --quiet check-jsonschema==$(SCHEMA_VERSION)

$(AXE):
	npm install --silent --no-save --no-audit --no-fund --prefix .reports/axe axe-core@$(AXE_VERSION)
$(KUBERNETES_TOOL):
	$(PYTHON) -m venv --clear $(@D:/bin=)
	$(@D)/python -m pip --disable-pip-version-check install --quiet kubernetes-validate==$(KUBERNETES_VERSION)

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
