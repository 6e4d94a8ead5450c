"""Encoders in one call of the CPU kernels: each text as if it were alone, on every instruction set, and as torch computes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract import ExecutorAttentionConfig, OptimizationConfig
from executors.kernels.compiler import find_compiler, usable_isas
from executors.llm.encoder.executor import EncoderExecutor, hidden_states, pooled_texts
from tests.executors.llm.encoder import rotary_models, test_encoders
from tests.executors.llm.encoder.test_encoders import FAMILIES, expected, off

ISAS = [isa.name for isa in usable_isas()] if find_compiler() else []
ALL = [*FAMILIES, *rotary_models.CONFIGS]
KINDS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
}
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "max_position_embeddings": 320}
MANY = (3, 300, 17, 64, 1, 150, 40, 90, 33, 7, 128, 65, 2, 77, 200, 11, 50, 5, 260, 31)
"""Enough for threads to take groups of texts."""


def written(folder: Path, family: str, **changes: Any) -> Any:
    sizes = {**SIZES, **changes}
    return (rotary_models.made if family in rotary_models.CONFIGS else test_encoders.made)(
        folder, family, **sizes
    )


async def started(folder: Path, kind: str = "float32", isa: str | None = None, **changes: Any) -> EncoderExecutor:  # fmt: skip
    own = dict(KINDS[kind])
    optimization = OptimizationConfig(quantization=own.pop("quantization", None), cpu_isa=isa)
    changes = {"max_num_seqs": 32, "max_num_batched_tokens": 4096, "optimization": optimization, **own, **changes}  # fmt: skip
    return await test_encoders.started(folder, **changes)


def vectors(executor: EncoderExecutor, ids: list[np.ndarray], threads: int, pooling: str = "mean") -> np.ndarray:  # fmt: skip
    """float32 [texts, hidden] of one step."""
    loaded = executor._loaded
    assert loaded is not None and loaded.fused is not None
    starts = np.concatenate([[0], np.cumsum([len(one) for one in ids])]).astype(np.int64)
    together = np.concatenate(ids)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = pooled_texts(loaded, together, np.zeros_like(together), starts, [pooling] * len(ids))
        return found.numpy()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["bert", *rotary_models.CONFIGS])
async def test_a_texts_bits_depend_neither_on_other_texts_nor_on_threads(
    tmp_path: Path, family: str, kind: str
) -> None:
    written(tmp_path, family)
    executor = await started(tmp_path, kind)
    ids = rotary_models.texts(MANY, seed=4)
    alone = np.concatenate([vectors(executor, [one], 1) for one in ids])
    assert np.isfinite(alone).all() and len(np.unique(alone.round(3), axis=0)) == len(ids)
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(vectors(executor, ids, threads), alone)
        np.testing.assert_array_equal(vectors(executor, ids[::-1], threads), alone[::-1])
        np.testing.assert_array_equal(vectors(executor, ids[1:3], threads), alone[1:3])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("family", ALL)
async def test_every_instruction_set_gives_the_vectors_of_transformers(
    tmp_path: Path, family: str, isa: str
) -> None:
    """In float32, or as near to float64 as those are: random models of this size amplify rounding."""
    model = written(tmp_path, family)
    executor = await started(tmp_path, isa=isa)
    ids = rotary_models.texts(MANY[:9], seed=2)
    rights = [expected(model, one) for one in ids]
    exact = [expected(model.double(), one) for one in ids]
    for pooling, part in (("mean", slice(None)), ("cls", slice(1)), ("last", slice(-1, None))):
        found = vectors(executor, ids, 2, pooling)
        for vector, hidden, sharp in zip(found, rights, exact, strict=True):
            right, best = hidden[part].mean(0), sharp[part].mean(0)
            near = max(1e-5 * max(1.0, float(np.abs(best).max())), 2 * off(right, best))
            assert off(vector, best) < near < 2e-4, (pooling, len(hidden))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("kind", "least"), [("bfloat16", 0.998), ("float16", 0.99999), ("int8", 0.99)])
@pytest.mark.parametrize("family", ["bert", "modernbert"])
async def test_narrow_weights_are_near_on_every_instruction_set(
    tmp_path: Path, family: str, kind: str, least: float, isa: str
) -> None:
    model = written(tmp_path, family)
    executor = await started(tmp_path, kind, isa)
    ids = rotary_models.texts(MANY[:9], seed=2)
    for one, vector in zip(ids, vectors(executor, ids, 2), strict=True):
        right = expected(model, one).mean(0)
        assert float(vector @ right / np.linalg.norm(vector) / np.linalg.norm(right)) > least, len(one)


@pytest.mark.parametrize(
    ("family", "changes"),
    [("nomic_bert", {}), ("modernbert", {}), ("modernbert", {"local_attention": 200})],
)
async def test_texts_longer_than_a_chunk_of_queries(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    model = written(tmp_path, family, **{"max_position_embeddings": 1300, "num_hidden_layers": 3, **changes})
    executor = await started(tmp_path)
    ids = rotary_models.texts((1200, 513, 512), seed=6)
    for one, vector in zip(ids, vectors(executor, ids, 2), strict=True):
        right = expected(model, one).mean(0)
        assert off(vector, right) < 1e-5 * max(1.0, float(np.abs(right).max())), len(one)


@pytest.mark.parametrize("family", ALL)
async def test_without_kernels_torch_computes_the_same(tmp_path: Path, family: str) -> None:
    written(tmp_path, family)
    fused = await started(tmp_path)
    plain = await started(tmp_path, attention=ExecutorAttentionConfig(backend="torch"))
    assert plain._loaded is not None and plain._loaded.fused is None and fused._loaded is not None
    ids = rotary_models.texts((33, 150, 7), seed=3)
    together, starts = np.concatenate(ids), np.array([0, 33, 183, 190])
    for pooling in ("cls", "mean", "last"):
        of_torch = pooled_texts(plain._loaded, together, np.zeros_like(together), starts, [pooling] * 3)
        found = of_torch.numpy()
        assert off(found, vectors(fused, ids, 1, pooling)) < 3e-5 * max(1.0, float(np.abs(found).max()))
    states = [
        hidden_states(one, together, np.zeros_like(together), starts)
        for one in (plain._loaded, fused._loaded)
    ]
    assert off(*states) < 1e-4 * max(1.0, float(np.abs(states[0]).max()))


async def test_a_value_that_is_not_finite_stays_in_its_text(tmp_path: Path) -> None:
    written(tmp_path, "bert")
    for kind in ("float32", "bfloat16", "int8"):
        executor = await started(tmp_path, kind)
        assert executor._loaded is not None
        executor._loaded.model.words[9] = float("nan")
        ids = [np.array([7, 9, 8], np.int32), np.array([7, 10, 8], np.int32)]
        found = vectors(executor, ids, 2)
        assert np.isnan(found[0]).all() and np.isfinite(found[1]).all(), kind
