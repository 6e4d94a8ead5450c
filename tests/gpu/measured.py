"""What the part `kernels` would launch on an H200 at its full sizes, recorded without one and compiled for it.

    python -m tests.gpu.measured --json FILE [--compile]

Tensors lie on torch's "meta" device, which has shapes and no memory; nothing is timed. Each call that would be timed is made
once, by the part's own code.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu import chain, extend, kernels, weights
from benchmarks.gpu.timing import Limits
from executors.llm.model import fp8
from tests.gpu.compiled import compile_all
from tests.gpu.launches import META, PROCESSORS, Launch, Recorder


def measured() -> tuple[dict[str, dict[str, Any]], list[Launch]]:
    """The part's rows, each of one second, and its launches; of experts those of eight that are chosen."""
    bench = kernels.Bench(META, torch.bfloat16, Limits(1.0, 1.0, "none"), False, lambda figures: None)
    recorder = Recorder()
    drawn = SimpleNamespace(device=META)
    with (
        recorder.recording(),
        torch.inference_mode(),
        patch.object(kernels, "seconds_of", _once),
        patch.object(extend, "_random", _empty),
        patch.object(weights, "_random", _empty),
        patch.object(extend, "noise", lambda device: drawn),
        patch.object(weights, "noise", lambda device: drawn),
        patch.object(extend, "distance", lambda found, expected: 0.0),
        patch.object(extend, "processors_of", lambda device: PROCESSORS),
        patch.object(weights.kernel_check, "random_rows", _rows),
        patch.object(fp8.Fp8Weight, "fill", lambda self, source, begin: None),
        patch.object(torch, "_scaled_mm", _product),
        patch.object(torch.Tensor, "unique", lambda self: range(8)),
    ):
        recorder.case = "extend"
        extend.measure(bench)
        recorder.case = "chain"
        own = torch.empty(chain.NODES, PROCESSORS * chain.WEIGHTS, dtype=torch.bfloat16, device=META)
        for read in (None, own):
            for early in (False, True):
                chain.Chain(chain.NODES, PROCESSORS, META, read).run(early)
        recorder.case = "weights"
        weights.measure(bench)
    return bench.rows, list(recorder.launches.values())


def _once(calls: list[Any], device: torch.device) -> float:
    calls[0]()
    return 1.0


def _empty(bench: kernels.Bench, drawn: object, *shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=bench.dtype, device=META)


def _rows(drawn: object, kind: str, rows: int, columns: int, device: torch.device) -> Any:
    return weights.DeviceRows.empty(kind, rows, columns, META)


def _product(data: torch.Tensor, weight: torch.Tensor, **more: object) -> torch.Tensor:
    return torch.empty(data.shape[0], weight.shape[1], dtype=torch.bfloat16, device=META)


def main() -> None:
    """Write {"rows": ..., "kernels": [...]}; with --compile what the compiler makes of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    rows, launches = measured()
    found = compile_all(launches, 2) if options.compile else []
    kernels_found = [asdict(one) for one in found] or [
        {"kernel": launch.kernel, "cases": launch.cases} for launch in launches
    ]
    options.json.write_text(json.dumps({"rows": rows, "kernels": kernels_found}, default=str), "utf-8")


if __name__ == "__main__":
    main()
