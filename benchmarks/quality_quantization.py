"""What quantised weights and KV cost on trained models: their logits for `quality_texts` beside float32's of transformers.

Every text is fed as it is. `prefill` compares all tokens after the first, `decode` and `alone` the last `DECODED` of each text:
see `quality_models`. FP8 is computed by torch here, in the numbers of a GPU: weights and activations rounded to e4m3, products
summed in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.quality_measures import Comparison, compare, joined
from benchmarks.quality_models import (
    WAYS,
    Forced,
    Transformers,
    Way,
    configuration,
    forced_texts,
    our_logits,
    started,
)
from executors.contract import ConfigError

CHANGES: dict[str, dict[str, str]] = {
    "bf16": {},
    "int8": {"quantization": "int8"},
    "fp8": {"quantization": "fp8", "backend": "torch"},
    "kv-fp8": {"kv_cache_dtype": "fp8", "backend": "torch"},
    "fp8+kv-fp8": {"quantization": "fp8", "kv_cache_dtype": "fp8", "backend": "torch"},
}
"""By the names that `--quantization` of `benchmarks.quality` takes: what is asked of the executor."""
DECODED = 48
"""Tokens of each text that are decoded one at a time."""


async def quantized(
    directory: Path, name: str, ways: Sequence[Way] = WAYS, threads: int | None = None
) -> dict[Way, Comparison]:
    """By way: the executor with one of `CHANGES` beside float32. Raises ConfigError where the change is not supported."""
    texts = {"prefill": forced_texts(directory), "decode": forced_texts(directory, DECODED)}
    exact = Transformers(directory, torch.float32)
    found: dict[Way, Comparison] = {}
    async with started(configuration(directory, texts["prefill"], threads, **CHANGES[name])) as executor:
        for way in ways:
            sequences = texts["prefill" if way == "prefill" else "decode"]
            # A text at a time but where they are decoded together: 2,600 rows of 262,144 logits are 2.7 GB.
            batches = [sequences] if way == "decode" else [[one] for one in sequences]
            found[way] = joined(
                [_compared(exact, batch, await our_logits(executor, batch, way)) for batch in batches]
            )
    return found


def _compared(exact: Transformers, sequences: Sequence[Forced], logits: list[Any]) -> Comparison:
    return joined(
        [
            compare([ours], [exact.logits(one)], [one.targets])
            for one, ours in zip(sequences, logits, strict=True)
        ]
    )


def figures(found: Comparison) -> dict[str, float]:
    """For the JSON: `kl` is the mean in nats; see `Comparison` for the others."""
    return {
        "rows": len(found.gap), "kl": float(found.kl.mean()), "agreement": found.agreement,
        "flipped_gap": found.flipped_gap, "perplexity": found.perplexity,
        "float32_perplexity": found.expected_perplexity, "rms": found.rms,
    }  # fmt: skip


async def report(directory: Path, names: Sequence[str], threads: int | None = None) -> dict[str, Any]:
    """`figures` by name of `CHANGES` and by way; {"problem": ...} in their place where the change is not supported."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            ways = await quantized(directory, name, WAYS, threads)
        except ConfigError as error:
            found[name] = {"problem": str(error)}
            continue
        found[name] = {way: figures(one) for way, one in ways.items()}
        print(f"  {directory.name} {name}: KL {found[name][WAYS[0]]['kl']:.5f}", flush=True)
    return found
