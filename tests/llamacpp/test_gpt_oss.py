"""llama.cpp's file of gpt-oss' experts in MXFP4, which its converter makes of the published form: the same weights, and what
llama.cpp computes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from executors.contract import LogitsMode, PrefillInput, Tensor
from executors.contract.config import ExecutorAttentionConfig
from executors.llm.checkpoint.files import Checkpoint
from tests.executors.gguf_files import prepared
from tests.executors.llm.checkpoint.gpt_oss_files import FILE, PACKED, apart, in_mxfp4
from tests.executors.llm.driver import start
from tests.llamacpp.agreement import differences
from tests.llamacpp.judge import compute, converter, need_programs
from tests.llamacpp.rows import row

pytestmark = [pytest.mark.external, pytest.mark.timeout(300)]
BOUND = 0.1
"""Of a logprob at most positions: activations in 8 bits beside random weights, of which 0.03 (kept) and 0.05 (wide) were measured
in the middle; where experts' scores are a near tie, any difference may follow."""


async def _logits(path: Path, ids: list[int], backend: str) -> np.ndarray:
    executor = await start(
        path, dtype="float32", attention=ExecutorAttentionConfig(block_size=4, backend=backend)
    )
    output = await executor.prefill(PrefillInput(Tensor.of([ids], "int32"), logits=LogitsMode.ALL))
    assert output.logits is not None
    await executor.shutdown()
    return output.logits.numpy()[0]


async def test_experts_in_mxfp4(tmp_path: Path) -> None:
    need_programs()
    fields = {**PACKED, **row("gpt-oss-sinks-windows").instead}
    packed, reference = in_mxfp4(tmp_path, fields)
    with converter(tmp_path) as one:
        file = one.convert(packed, tmp_path / "m.gguf", "f32")
    gguf = prepared(tmp_path / "gguf", file)
    exact = load_file(apart(reference.path, tmp_path / "apart") / FILE)
    checkpoint = Checkpoint(gguf)
    assert checkpoint.names() == set(exact)
    for name, expected in exact.items():
        ours = torch.empty(expected.shape)
        checkpoint.file_of(name).copy_into(name, ours)
        assert torch.equal(ours, expected), name
    assert (
        checkpoint.file_of("model.layers.0.mlp.experts.3.up_proj.weight").stored_kind(
            "model.layers.0.mlp.experts.3.up_proj.weight"
        )
        == "MXFP4"
    )
    checkpoint.close()

    ids = [(31 * i * i + 7 * i) % 200 for i in range(60)]
    [theirs] = compute(file, [ids], [0], 256, True, tmp_path)
    wide, kept = await _logits(gguf, ids, "torch"), await _logits(gguf, ids, "auto")
    assert differences(wide, reference.logits(ids)).max() < 1e-4
    # Both multiply activations in 8 bits, and are nearer to each other than to what is exact.
    assert np.median(differences(kept, theirs.logits)) < np.median(differences(wide, theirs.logits)) < BOUND
    assert np.quantile(differences(kept, theirs.logits), 0.8) < BOUND
    assert (kept.argmax(-1) == theirs.logits.argmax(-1)).mean() > 0.9
