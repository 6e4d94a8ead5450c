"""What quantised weights and KV cost on trained models: their logits for `quality_texts` beside float32's of transformers.

Every text is fed as it is. `prefill` compares all tokens after the first, `decode` and `alone` the last `DECODED` of each text:
see `quality_models`. FP8 is computed by torch here, in the numbers of a GPU: weights and activations rounded to e4m3, products
summed in fp32. So is `kv-int8-device`: queries and weights of keys stay as they are, which Cohort's CPU kernels round.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.quality_measures import Comparison, compare, joined
from benchmarks.quality_models import (
    WAYS,
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
    "int4": {"quantization": "int4"},
    "kv-int8": {"kv_cache_dtype": "int8"},
    "kv-int8-device": {"kv_cache_dtype": "int8", "backend": "torch"},
    "fp8": {"quantization": "fp8", "backend": "torch"},
    "kv-fp8": {"kv_cache_dtype": "fp8", "backend": "torch"},
    "fp8+kv-fp8": {"quantization": "fp8", "kv_cache_dtype": "fp8", "backend": "torch"},
}
"""By the names that `--quantization` of `benchmarks.quality` takes: what is asked of the executor."""
DECODED = 48
"""Tokens of each text that are decoded one at a time."""


@contextmanager
def float32_logits(directory: Path) -> Iterator[list[np.ndarray]]:
    """transformers' logits float32 [rows, V] of each of `forced_texts`, in files that are removed at the end: of 2,200 tokens
    of a vocabulary of 262,144 they are 2.3 GB."""
    with tempfile.TemporaryDirectory() as folder:
        exact = Transformers(directory, torch.float32)
        found = []
        for number, sequence in enumerate(forced_texts(directory)):
            path = Path(folder) / f"{number}.npy"
            np.save(path, exact.logits(sequence))
            found.append(np.load(path, mmap_mode="c"))
        del exact
        yield found


async def quantized(
    directory: Path,
    name: str,
    exact: Sequence[np.ndarray],
    ways: Sequence[Way] = WAYS,
    threads: int | None = None,
) -> dict[Way, Comparison]:
    """By way: the executor with one of `CHANGES` beside `exact`, see `float32_logits`.

    Raises ConfigError where the change is not supported.
    """
    texts, ends = forced_texts(directory), forced_texts(directory, DECODED)
    found: dict[Way, Comparison] = {}
    async with started(configuration(directory, texts, threads, **CHANGES[name])) as executor:
        for way in ways:
            sequences = texts if way == "prefill" else ends
            # A text at a time, but where they are decoded together.
            size = len(sequences) if way == "decode" else 1
            parts = []
            for begin in range(0, len(sequences), size):
                batch = sequences[begin : begin + size]
                reference = [
                    rows[-len(one.rows) :]
                    for rows, one in zip(exact[begin : begin + size], batch, strict=True)
                ]
                logits = await our_logits(executor, batch, way)
                parts.append(compare(logits, reference, [one.targets for one in batch]))
            found[way] = joined(parts)
    return found


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
    with float32_logits(directory) as exact:
        for name in names:
            try:
                ways = await quantized(directory, name, exact, WAYS, threads)
            except ConfigError as error:
                found[name] = {"problem": str(error)}
                continue
            found[name] = {way: figures(one) for way, one in ways.items()}
            print(f"  {directory.name} {name}: KL {found[name]['prefill']['kl']:.5f}", flush=True)
    return found
