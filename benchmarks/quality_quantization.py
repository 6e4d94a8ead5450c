"""What quantised weights and KV cost: logits, perplexity and skills of cohort-tiny on held-out text, beside fp32 and bf16.

FP8 is computed by torch here, in the numbers of a GPU: weights and activations rounded to e4m3, products summed in fp32.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.quality_measures import Comparison, compare
from benchmarks.quality_models import (
    WAYS,
    Forced,
    Transformers,
    Way,
    configuration,
    conversations,
    our_logits,
    started,
)
from executors.contract import ConfigError
from executors.tiny.evaluate import ask_server, questions
from tests.e2e.server_process import ServerProcess

CHANGES: dict[str, dict[str, str]] = {
    "int8": {"quantization": "int8"},
    "fp8": {"quantization": "fp8", "backend": "torch"},
    "kv-fp8": {"kv_cache_dtype": "fp8", "backend": "torch"},
    "fp8+kv-fp8": {"quantization": "fp8", "kv_cache_dtype": "fp8", "backend": "torch"},
}
"""By the names that `--quantization` of `benchmarks.quality` takes: what is asked of the executor."""
_FLAGS = {
    "quantization": "--quantization", "kv_cache_dtype": "--kv-cache-dtype", "backend": "--attention-backend",
}  # fmt: skip


async def text_pair(
    directory: Path,
    quantization: str,
    count: int,
    seed: int,
    way: Way = "prefill",
    threads: int | None = None,
) -> dict[str, Any]:
    """Figures of one set of conversations, by what computed them: each beside fp32, the quantised ones beside our bf16 too.

    Raises ConfigError where the quantisation is not supported.
    """
    sequences = conversations(directory, count, seed)
    targets = [one.targets for one in sequences]
    exact = Transformers(directory, torch.float32)
    reference = [exact.logits(one) for one in sequences]
    del exact
    quantised = await _served(directory, sequences, way, threads, **CHANGES[quantization])
    plain = await _served(directory, sequences, way, threads)
    deviation = float(
        np.concatenate([(one - one.mean(-1, keepdims=True)).ravel() for one in reference]).std()
    )
    return {
        "seed": seed, "conversations": len(sequences), "rows": sum(map(len, targets)), "logit_deviation": deviation,
        "fp32": {"perplexity": compare(reference, reference, targets).perplexity},
        "bf16": _figures(compare(plain, reference, targets)),
        quantization: _figures(compare(quantised, reference, targets))
        | {"beside_bf16": _figures(compare(quantised, plain, targets))},
    }  # fmt: skip


async def _served(
    directory: Path, sequences: Sequence[Forced], way: Way, threads: int | None, **changes: Any
) -> list[np.ndarray]:
    async with started(configuration(directory, sequences, threads, **changes)) as executor:
        return await our_logits(executor, sequences, way)


def _figures(found: Comparison) -> dict[str, float]:
    return {
        "rms": found.rms, "agreement": found.agreement, "perplexity": found.perplexity, "kl": float(found.kl.mean()),
    }  # fmt: skip


async def text(
    directory: Path, quantization: str, pairs: int, count: int, threads: int | None = None
) -> dict[str, Any]:
    """Medians over `pairs` sets of conversations, by way, or {"problem": ...} where it is not supported."""
    try:
        found = {
            way: [
                await text_pair(directory, quantization, count, seed, way, threads) for seed in range(pairs)
            ]
            for way in WAYS
        }
    except ConfigError as error:
        return {"problem": str(error)}
    return {way: _medians(reports, quantization) | {"pairs": reports} for way, reports in found.items()}


def _medians(reports: Sequence[dict[str, Any]], quantization: str) -> dict[str, float]:
    def median(*path: str) -> float:
        values = []
        for report in reports:
            value: Any = report
            for key in path:
                value = value[key]
            values.append(value)
        return statistics.median(values)

    return {
        "rows": sum(report["rows"] for report in reports),
        "logit_deviation": median("logit_deviation"),
        "rms": median(quantization, "rms"),
        "bf16_rms": median("bf16", "rms"),
        "rms_beside_bf16": median(quantization, "beside_bf16", "rms"),
        "agreement": median(quantization, "agreement"),
        "bf16_agreement": median("bf16", "agreement"),
        "agreement_with_bf16": median(quantization, "beside_bf16", "agreement"),
        "kl": median(quantization, "kl"),
        "bf16_kl": median("bf16", "kl"),
        "fp32_perplexity": median("fp32", "perplexity"),
        "bf16_perplexity": median("bf16", "perplexity"),
        "perplexity": median(quantization, "perplexity"),
    }


def skills(directory: Path | None, quantization: str, count: int, seed: int = 0) -> dict[str, Any]:
    """Share of right answers by row of the skill table, of a server without and one with the flag; `count` prompts a row.

    {"problem": ...} where the server does not start. `directory` None: the embedded cohort-tiny.
    """
    model = [] if directory is None else [str(directory)]
    prompts = questions(count, seed=seed)
    found: dict[str, dict[str, float]] = {}
    asked = [word for name, value in CHANGES[quantization].items() for word in (_FLAGS[name], value)]
    for name, flags in (("bf16", list[str]()), (quantization, asked)):
        with tempfile.TemporaryDirectory() as folder:
            try:
                with ServerProcess([*model, *flags], Path(folder)) as server:
                    found[name] = {
                        skill: statistics.fmean(one.correct for one in ask_server(server.url, samples))
                        for skill, samples in prompts.items()
                    }
            except AssertionError as error:  # it ended before it was ready, and says why in its last line
                return {"problem": str(error).strip().splitlines()[-1]}
    rows = {skill: {name: shares[skill] for name, shares in found.items()} for skill in prompts}
    return {"prompts_per_row": count, "rows": rows}
