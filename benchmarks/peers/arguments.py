"""The command line of benchmarks.peers, checked, and how long the run is going to take."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import compare, gguf_files, headline, servers
from benchmarks.shapes import SHAPES
from clients.bench.workloads import WORKLOADS

PEERS = ("vllm", "llamacpp", "openvino", "ik", "cohort")
ONE_STREAM = ("openvino", "ik")
"""Libraries that compute one sequence here: no workload with more."""
SHAPE = "qwen3-0.6b"

SECONDS = {
    "cohort": {"start": 5, "single": 7, "burst": 5, "steady": 10, "wide": 12, "prompt": 17},
    "cohort-avx2": {"start": 5, "single": 7, "prompt": 27},
    "vllm": {"start": 75, "single": 9, "burst": 5, "steady": 13, "wide": 17},
    "llamacpp": {"start": 5, "single": 6, "burst": 19, "wide": 51},
    "openvino": {"start": 8, "single": 9, "prompt": 16},
    "ik": {"start": 3, "single": 6, "prompt": 40},
}
"""What one run of a workload takes on two cores, to announce the length of all."""
UNKNOWN_SECONDS, PROBE_SECONDS, LIMITS_SECONDS = 30, 4, 15


def parse(description: str | None) -> argparse.Namespace:
    """What the command line says. Left-out values are those of the peer's headline."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", help="with commas [those of the headline; with --gguf all]")
    parser.add_argument(
        "--rounds",
        type=int,
        default=headline.ROUNDS,
        help="times each server is started per model [%(default)s]",
    )
    parser.add_argument(
        "--spare", type=int, default=2, help="rounds more, at most, in place of loaded ones [%(default)s]"
    )
    parser.add_argument(
        "--repeat",
        type=int,
        help="runs per workload; of several the first is thrown away [3; 1 beside GGUF peers]",
    )
    parser.add_argument(
        "--no-headline", action="store_true", help="only results; exit code 0 without a headline"
    )
    parser.add_argument("--shape", default=SHAPE, choices=SHAPES, help="the large model [%(default)s]")
    parser.add_argument("--peer", default="vllm", choices=PEERS)
    parser.add_argument(
        "--peer-dtype",
        default="bfloat16",
        choices=("bfloat16", "float32"),
        help="vLLM's; without AVX-512 its products of bfloat16 take hours [%(default)s]",
    )
    parser.add_argument(
        "--gguf",
        help="serve these, with commas, instead of the shape: "
        f"{', '.join(gguf_files.NAMES)}, or a file [beside GGUF peers: qwen3-0.6b-q4_k_m]",
    )
    parser.add_argument("--quantization", help="compare Cohort with this and without it")
    parser.add_argument("--flags", default="", help="more flags of `cohort serve`, as one word")
    parser.add_argument(
        "--json", type=Path, help="[benchmarks/results/peers-MACHINE.json, with what differs in it]"
    )
    asked = parser.parse_args()
    if problem := _complete(asked):
        parser.error(problem)
    return asked


def _complete(asked: argparse.Namespace) -> str | None:
    """Fill in what was left out, and `for_headline`. Returns what does not go together."""
    reads_gguf = asked.peer in ("llamacpp", *ONE_STREAM)
    if asked.quantization and reads_gguf:
        return "--quantization compares Cohort with itself"
    usual_files = reads_gguf and asked.gguf is None
    asked.gguf = [headline.HEADLINES[asked.peer].subject] if usual_files else listed(asked.gguf)
    if asked.gguf and (asked.quantization or asked.peer == "vllm"):
        return "--gguf: with --peer llamacpp, openvino, ik or cohort, and without --quantization"
    if asked.peer_dtype != "bfloat16" and asked.peer != "vllm":
        return "--peer-dtype: with --peer vllm"
    if asked.json is not None and len(asked.gguf) > 1:
        return "--json: with one file of --gguf, for each has a report"
    known = [name for name in compare.NAMES if not (asked.gguf and compare.COMPARED[name].small_model)]
    if asked.peer in ONE_STREAM:
        known = [name for name in known if WORKLOADS[name].concurrency == 1]
    usual = [name for name in known if name != "prompt"]
    if not asked.gguf:
        usual = [name for name in usual if WORKLOADS[name].context <= servers.ROOM.context]
    of = headline.HEADLINES.get(asked.peer)
    if of is not None and not asked.quantization and (usual_files or not asked.gguf):
        usual = list(of.workloads)
    asked.workloads = listed(asked.workloads) or usual
    if unknown := sorted(set(asked.workloads) - set(known)):
        return f"no workload {', '.join(unknown)}; there are {', '.join(known)}"
    asked.for_headline = of is not None and not asked.quantization and not asked.no_headline
    asked.for_headline &= asked.peer_dtype == "bfloat16"  # a headline compares two that compute the same
    if asked.repeat is None:
        asked.repeat = of.repeat if of is not None else 3
    if asked.rounds < 1 or asked.repeat < 1 or asked.spare < 0:
        return "--rounds and --repeat: at least 1; --spare: at least 0"
    return None


def listed(words: str | None) -> list[str]:
    """The words between commas."""
    return [word.strip() for word in (words or "").split(",") if word.strip()]


def seconds_of_round(sides: Sequence[str], workloads: Sequence[str], repeat: int) -> float:
    """Roughly, what a round takes on two cores."""
    total = float(PROBE_SECONDS)
    for side in sides:
        known = SECONDS.get(side, SECONDS["cohort"])
        total += PROBE_SECONDS + known["start"]
        for name in workloads:
            runs = 1 if compare.COMPARED[name].once else repeat
            total += known.get(name, UNKNOWN_SECONDS) * runs
    return total
