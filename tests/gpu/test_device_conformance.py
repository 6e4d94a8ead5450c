"""The conformance kit over steps that the device only is told of, with graphs and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from executors.contract.batch import UnifiedBatch
from executors.llm.executor import LlmExecutor
from executors.llm.step.pending_steps import PendingStep
from executors.testing import (
    conformance_adoption,
    conformance_drafts,
    conformance_states,
    conformance_windows,
)
from executors.testing.conformance import CASES, run_case
from executors.testing.conformance_loras import NO_ADAPTERS
from tests.executors.checkpoints import write_checkpoint
from tests.executors.grammar_tokenizers import write_tokenizer
from tests.executors.llm.driver import config
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor
from tests.gpu.workloads import SMALL
from tests.tiers import sweep

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


def injecting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, int], None]:
    """Steps fail as they are launched, or the logits of a sequence are no numbers."""

    def inject(executor: FakeDeviceExecutor, kind: str, seq_id: int) -> None:
        unified = executor.unified
        sampler, launch, sample = (
            unified.launched.program.sampler,
            unified.launch,
            unified.launched.program.sampler.sample,
        )
        unified.launched.captures.graphs = None  # they would notice that something else is computed

        def launched(batch: UnifiedBatch) -> PendingStep:
            ids = batch.seq_ids.tolist()
            if seq_id not in ids:
                return launch(batch)
            monkeypatch.setattr(unified, "launch", launch)
            if kind == "step_failed":
                raise RuntimeError("injected")
            if kind == "out_of_memory":
                raise MemoryError("injected")

            def spoiled(logits: torch.Tensor, *others: Any) -> None:
                monkeypatch.setattr(sampler, "sample", sample)
                logits[ids.index(seq_id)] = torch.nan
                sample(logits, *others)

            monkeypatch.setattr(sampler, "sample", spoiled)
            return launch(batch)

        monkeypatch.setattr(unified, "launch", launched)

    return inject


@pytest.mark.long(every=6)
@sweep(every=2)
@pytest.mark.parametrize("captures", [True, False])
@pytest.mark.parametrize("case", CASES)
async def test_conformance(
    case: str, captures: bool, path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = config(path, tokenizer=str(write_tokenizer(tmp_path, 200)))

    def make() -> LlmExecutor:
        executor = FakeDeviceExecutor.from_config(settings)
        executor.device = FakeDevice(captures=captures)
        return executor

    reason = await run_case(case, make, tolerance=1e-3, inject=injecting(monkeypatch))
    elsewhere = (
        conformance_drafts.NOT_DECLARED,
        conformance_adoption.NOT_DECLARED,
        conformance_windows.NO_WINDOW,
        conformance_windows.ONE_GROUP,
        conformance_states.NO_STATES,
    )
    assert reason in (None, NO_ADAPTERS, *elsewhere), "every other case concerns an LlmExecutor on a device"
