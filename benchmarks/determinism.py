"""What `--deterministic` costs: two servers of one model side by side, with and without it, asked in turn.

    python -m benchmarks.determinism [--models cohort-tiny,qwen3-0.6b,gpt2] [--rounds 3] [--json FILE]

Plain, deterministic, plain, deterministic, ...: one round of `cohort bench` each, `single`, `burst` and `prefix`, the first
of each thrown away. Both servers run all the time, one of them idle. A figure is the median over the rounds of one server's
over the other's in the same round; below it the smallest and largest. 1.00: it costs nothing.

Models whose layers are one call of the kernels (cohort-tiny and the Qwen3 shape) compute the same either way; where torch
computes the activation (the GPT-2 shape, random weights) it is computed in another form.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.attention import cpu_name
from benchmarks.peers import models, servers
from executors.tiny import weights_dir

_GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 151936, "n_positions": 1024, "n_embd": 768,
    "n_layer": 12, "n_head": 12, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "eos_token_id": 151645,
}  # fmt: skip
_LIMITS = ("--max-model-len", "1024", "--kv-cache-memory-bytes", "512MiB")
_FIGURES = {
    "single": ("itl_p50_ms", "ms between tokens, one stream"),
    "burst": ("wall_s", "s for 32 prompts that arrive together"),
    "prefix": ("wall_s", "s for 32 requests with a shared prefix"),
}
"""Of each workload one figure of bench_figures.py that is better when it is smaller."""
_REPORTS = Path(".reports/determinism")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="cohort-tiny,qwen3-0.6b,gpt2")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count, at least 1 [3]")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds: at least 1 is needed")
    _REPORTS.mkdir(parents=True, exist_ok=True)
    found = {name: _measure(name, arguments.rounds) for name in arguments.models.split(",")}
    if arguments.json:
        result = {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), "models": found}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


def _measure(name: str, rounds: int) -> dict[str, Any]:
    model, flags = _model(name)
    plain = servers.cohort("plain", *_LIMITS, *flags)
    other = servers.cohort("deterministic", *_LIMITS, *flags, "--deterministic")
    with contextlib.ExitStack() as stack:
        urls = [
            stack.enter_context(servers.serving(side, model, _REPORTS / f"{name}-{side.name}.log"))[0]
            for side in (plain, other)
        ]
        pairs = [[_ask(url, seed) for url in urls] for seed in range(rounds + 1)][1:]
    print(f"\n{name}")
    found: dict[str, Any] = {}
    for workload, (_, about) in _FIGURES.items():
        values = [(before[workload], after[workload]) for before, after in pairs]
        ratios = [after / before for before, after in values]
        medians = [statistics.median(side) for side in zip(*values, strict=True)]
        print(
            f"  {workload:7s} x {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}): "
            f"{medians[0]:.2f} -> {medians[1]:.2f} {about}"
        )
        found[workload] = {"ratio": statistics.median(ratios), "plain_and_deterministic": values}
    return found


def _model(name: str) -> tuple[Path, tuple[str, ...]]:
    """Its folder and the flags it needs."""
    if name == "cohort-tiny":
        return weights_dir(), ()
    if name == "gpt2":
        folder = _REPORTS / "gpt2"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(_GPT2) + "\n")
        models.write_tokenizer(folder)
        return folder, ("--load-format", "dummy")
    return models.ensure(name), ()


def _ask(url: str, seed: int) -> dict[str, float]:
    """One run of each workload."""
    command = [
        sys.executable,
        "-m",
        "server.cli",
        "bench",
        url,
        "--json",
        "--repeat",
        "1",
        "--seed",
        str(seed),
    ]
    command += ["--workload", ",".join(_FIGURES)]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return {
        name: float(entry["runs"][0][_FIGURES[name][0]])
        for entry in report["workloads"]
        for name in [entry["workload"]["name"]]
    }


if __name__ == "__main__":
    main()
