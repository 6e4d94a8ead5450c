"""The servers of the table: how each is started with what its documentation offers for such days, and which process computes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.kill_table.calls import MODEL
from benchmarks.peers import install, llamacpp
from tools import real_models

ROOT = Path(__file__).resolve().parents[2]
SEQUENCES, CONTEXT = 16, 1024
"""Of each server: nine sequences of the eight calls, two neighbours, a newcomer and a poisoned one."""
KV_GIB = 1
THREADS = int(os.environ.get("KILL_TABLE_THREADS") or len(os.sched_getaffinity(0)))
"""That compute, of the peers. One beside other work: theirs wait for each other in a loop."""
STEP_S = 45
"""Seconds until vLLM takes a step for hung: less than the clients' patience, and more than a first step beside other work."""
DRAIN_S = 60
"""Seconds for running calls after SIGTERM, where a server has a setting for that."""


@dataclass(frozen=True)
class Subject:
    """A server. Words of `command` may have {port}. `computes` says of a child's command line whether that process computes.
    `poison`: what the command gets in addition for the poisoned request, and fields of that request; None where nothing is known
    that crashes it each time. `options` and `processes` are for the page."""

    name: str
    title: str
    version: str
    model: str
    command: list[str]
    ready: str
    computes: Callable[[str], bool]
    options: str
    processes: str
    poison: tuple[list[str], dict[str, Any]] | None = None
    poison_note: str = ""
    env: dict[str, str] = field(default_factory=dict)
    threads: int = 0


def subject(name: str, folder: Path) -> Subject:
    """By its name; `folder` is for files that it needs. Installs or builds what is not there, and raises what
    `install.ensure` and `llamacpp.ensure` raise."""
    return {"cohort": cohort, "vllm": vllm, "llamacpp": llama}[name](folder)


def cohort(folder: Path) -> Subject:
    """This checkout."""
    model = real_models.directory("smollm2")
    command = [
        sys.executable, "-m", "server.cli", "serve", "--model", str(model), "--host", "127.0.0.1", "--port", "{port}",
        "--served-model-name", MODEL, "--dtype", "bfloat16", "--max-model-len", str(CONTEXT), "--max-num-seqs",
        str(SEQUENCES), "--kv-cache-memory-bytes", f"{KV_GIB}GiB", "--drain-timeout", str(DRAIN_S), "--deterministic",
    ]  # fmt: skip
    return Subject(
        "cohort", "Cohort", metadata.version("cohort-server"), "SmolLM2-135M-Instruct, bfloat16", command, "/ready",
        lambda line: line.startswith("cohort: executor"),
        f"`--deterministic --drain-timeout {DRAIN_S}`",
        "Killed, hung and out of memory strike the executor, a child of the server.",
        (["--executor", "tests.chaos.crashing_executor:CrashingFactory"], {"seed": 666}),
        "An executor for tests (`tests/chaos/crashing_executor.py`) ends its process, without a word, whenever it computes a "
        "request with this seed.",
        {"PYTHONPATH": str(ROOT)},
        len(os.sched_getaffinity(0)),
    )  # fmt: skip


def vllm(folder: Path) -> Subject:
    """vLLM's CPU build."""
    venv = install.ensure()
    cores = sorted(os.sched_getaffinity(0))[:THREADS]
    command = [
        str(venv / "bin/vllm"), "serve", str(real_models.directory("smollm2")), "--host", "127.0.0.1", "--port", "{port}",
        "--served-model-name", MODEL, "--dtype", "bfloat16", "--max-model-len", str(CONTEXT), "--max-num-seqs",
        str(SEQUENCES), "--shutdown-timeout", str(DRAIN_S), "--enforce-eager", "--enable-auto-tool-choice", "--tool-call-parser",
        "hermes",
    ]  # fmt: skip
    env = {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)), "OMP_NUM_THREADS": str(len(cores)),
        "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB), "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": str(install.openmp(venv)), "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(Path(__file__).parent), "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(STEP_S),
    }  # fmt: skip
    return Subject(
        "vllm", "vLLM", install.VERSION, "SmolLM2-135M-Instruct, bfloat16", command, "/health",
        lambda line: line.startswith("VLLM::Worker"),
        f"`--shutdown-timeout {DRAIN_S}`, `VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS={STEP_S}` (300 if not set), `--enforce-eager` "
        "(starts faster). Its fault tolerance rearranges groups of data-parallel engines and has nothing to do for one",
        "Killed, hung and out of memory strike the worker, a child of EngineCore, which is a child of the API server.",
        (["--logits-processors", "vllm_poison:Poison"], {"vllm_xargs": {"poison": 1}}),
        "A logits processor, vLLM's own way to add code, ends the process without a word whenever a request with this argument "
        "is computed (`benchmarks/kill_table/vllm_poison.py`).",
        env,
        THREADS,
    )  # fmt: skip


def llama(folder: Path) -> Subject:
    """llama.cpp's server as a router, which loads a model again after its instance has ended."""
    program = llamacpp.ensure() / "bin/llama-server"
    preset = folder / "models.ini"
    # SmolLM2's own template knows no tools; this one has the same turns.
    template = next(llamacpp.folder().glob("*/vendor/llama.cpp/models/templates/Qwen-Qwen2.5-*.jinja"))
    preset.write_text(
        f"version = 1\n\n[{MODEL}]\nmodel = {real_models.gguf_file('smollm2')}\nload-on-startup = true\n"
        f"chat-template-file = {template}\nstop-timeout = {DRAIN_S}\nt = {THREADS}\nnp = {SEQUENCES}\nc = {SEQUENCES * CONTEXT}\n"
    )
    command = [
        str(program),
        "--models-preset",
        str(preset),
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
        "--threads-http",
        "32",
    ]
    return Subject(
        "llamacpp", "llama.cpp", f"llama-cpp-python {llamacpp.VERSION}'s copy", "SmolLM2-135M-Instruct, Q4_K_M",
        command, "/health",
        lambda line: "llama-server" in line,
        f"its router, which loads the model again for the next request, `stop-timeout = {DRAIN_S}`, `--threads-http 32` (it "
        "holds back the tenth call otherwise), Qwen2.5's template (SmolLM2's own knows no tools)",
        "Killed, hung and out of memory strike the model's instance, a child of the router. Without the router there is one "
        "process, and its end is the end of everything.",
        None,
        "No request is known that crashes this version each time, and it has no place to add code that does. Such a crash would "
        "be what `killed` is.",
        threads=THREADS,
    )  # fmt: skip
