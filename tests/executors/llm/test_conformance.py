"""The conformance kit, over a small Qwen3."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from executors.contract.config import ExecutorAttentionConfig, OptimizationConfig
from executors.llm.executor import LlmExecutor, LlmLoraExecutor
from executors.lora import pack
from executors.testing import (
    conformance_adoption,
    conformance_drafts,
    conformance_history,
    conformance_states,
    conformance_windows,
)
from executors.testing.conformance import CASES, LoraSource, run_case
from tests.executors.grammar_tokenizers import write_tokenizer
from tests.executors.llm.driver import config
from tests.executors.llm.stages import SampledBy
from tests.executors.lora.peft_files import write_peft
from tests.tiers import sweep


def _is_of_states(case: str) -> bool:
    return CASES[case].__module__ == conformance_states.__name__


def make_inject(monkeypatch):
    """Steps fail for real: torch raises, or a sequence's hidden states are no numbers."""

    def inject(executor: LlmExecutor, kind: str, seq_id: int) -> None:
        stages = executor._runtime.unified.stages
        original = stages.sample

        def sample(batch, step, hidden, where):
            ids = batch.seq_ids.tolist()
            if seq_id not in ids:
                return original(batch, step, hidden, where)
            monkeypatch.setattr(stages, "sample", original)
            if kind == "step_failed":
                raise RuntimeError("injected")
            if kind == "out_of_memory":
                raise MemoryError("injected")
            i = ids.index(seq_id)
            hidden[int(step.q_starts[i]) : int(step.q_starts[i] + step.q_lens[i])] = torch.nan
            return original(batch, step, hidden, where)

        monkeypatch.setattr(stages, "sample", SampledBy(original, sample))

    return inject


def write_adapters(model: Path, folder: Path) -> list[LoraSource]:
    """Two for all linear layers, large enough to change what the model says."""
    tensors = load_file(model / "model.safetensors")
    targets = {
        name.removesuffix(".weight"): tuple(tensor.shape)
        for name, tensor in tensors.items()
        if name.endswith("_proj.weight")
    }
    (folder / "packed").mkdir()
    found = []
    for seed, rank in enumerate((3, 8)):
        write_peft(folder / f"a{seed}", targets, rank=rank, seed=seed)
        packed = pack(folder / f"a{seed}", folder / "packed", 8)
        found.append(LoraSource(f"a{seed}", str(packed.path), packed.digest))
    return found


@pytest.mark.parametrize("case", CASES)
async def test_conformance(case, qwen3, monkeypatch, tmp_path):
    optimization = OptimizationConfig(num_threads=1, max_loras=2)
    settings = config(qwen3, tokenizer=str(write_tokenizer(tmp_path, 200)), optimization=optimization)
    adapters = write_adapters(qwen3, tmp_path)

    def make() -> LlmExecutor:
        return LlmLoraExecutor.from_config(settings)

    assert settings.attention == ExecutorAttentionConfig(block_size=4)
    reason = await run_case(case, make, tolerance=1e-3, inject=make_inject(monkeypatch), adapters=adapters)
    elsewhere = (
        conformance_drafts.NOT_DECLARED,
        conformance_adoption.NOT_DECLARED,
        conformance_windows.NO_WINDOW,
        conformance_windows.ONE_GROUP,
        conformance_states.NO_STATES,
    )
    assert reason in (None, *elsewhere), "every other case concerns LlmExecutor"


@sweep(every=3)
@pytest.mark.parametrize("name", ["lfm2-short-convolutions", "qwen3.5"])
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if _is_of_states(case) else pytest.mark.long) for case in CASES],
)
async def test_conformance_with_states(case, name, reference, monkeypatch):
    settings = config(reference(name).path)

    def make() -> LlmExecutor:
        return LlmExecutor.from_config(settings)

    reason = await run_case(case, make, tolerance=1e-3, inject=make_inject(monkeypatch))
    assert reason is None or not _is_of_states(case)
    assert reason != conformance_history.NO_HANDLES or case == "single_members_equal_unified"
