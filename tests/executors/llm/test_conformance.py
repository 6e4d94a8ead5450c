"""The conformance kit, over a small Qwen3."""

import pytest
import torch

from executors.contract.config import ExecutorAttentionConfig
from executors.llm.executor import LlmExecutor
from executors.testing.conformance import CASES, run_case
from tests.executors.grammar_tokenizers import write_tokenizer
from tests.executors.llm.driver import config


def make_inject(monkeypatch):
    """Steps fail for real: torch raises, or a sequence's hidden states are no numbers."""

    def inject(executor: LlmExecutor, kind: str, seq_id: int) -> None:
        unified = executor._runtime.unified
        original = unified._sample

        def sample(batch, step, hidden, where):
            ids = batch.seq_ids.tolist()
            if seq_id not in ids:
                return original(batch, step, hidden, where)
            monkeypatch.setattr(unified, "_sample", original)
            if kind == "step_failed":
                raise RuntimeError("injected")
            if kind == "out_of_memory":
                raise MemoryError("injected")
            i = ids.index(seq_id)
            hidden[int(step.q_starts[i]) : int(step.q_starts[i] + step.q_lens[i])] = torch.nan
            return original(batch, step, hidden, where)

        monkeypatch.setattr(unified, "_sample", sample)

    return inject


@pytest.mark.parametrize("case", CASES)
async def test_conformance(case, qwen3, monkeypatch, tmp_path):
    settings = config(qwen3, tokenizer=str(write_tokenizer(tmp_path, 200)))

    def make() -> LlmExecutor:
        return LlmExecutor.from_config(settings)

    assert settings.attention == ExecutorAttentionConfig(block_size=4)
    reason = await run_case(case, make, tolerance=1e-3, inject=make_inject(monkeypatch))
    assert reason is None, "every case concerns LlmExecutor"
