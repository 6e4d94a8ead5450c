"""Logprobs that are computed behind a step are those that the host computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from executors.contract.batch import ItemOutput, SamplingParams
from executors.llm.executor import LlmExecutor
from executors.llm.sampling import device_logprobs
from executors.llm.sampling.device_logprobs import LogprobRows, described
from executors.llm.sampling.sampler import describe
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.driver import Driver, config
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor
from tests.gpu.workloads import SMALL

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_what_is_described(dtype: torch.dtype, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ties, both zeros, masks, numbers of any sign; of some rows, each with a count of its own."""
    rng, n, width = np.random.default_rng(at_once), 12, 50
    monkeypatch.setattr(device_logprobs, "_BYTES", at_once * device_logprobs._COPIES * width)
    values = rng.normal(0, 2, (n, width)).round(0)
    values[3], values[4, ::2], values[5, 7:] = 0.0, -0.0, -np.inf
    values[6] = -np.abs(values[6]) - 1
    logits = torch.from_numpy(values).to(dtype).to(DEVICE)
    tokens = rng.integers(0, width, n).astype(np.int32)
    tokens[5] = 3
    counts = np.array([-1, 0, 5, 50, 50, 9, 20, 1, -1, 3, 60, 2])
    rows = rng.permutation(n)  # of items, wherever they lie
    wanted = LogprobRows.of(counts, rows, width)
    assert wanted is not None and wanted.most == width and len(wanted.items) == 10
    of_rows = torch.empty(n, dtype=torch.int32, device=DEVICE)
    of_rows[torch.from_numpy(rows).to(DEVICE)] = torch.from_numpy(tokens).to(DEVICE)
    result = described(logits, of_rows, torch.from_numpy(wanted.rows).to(DEVICE), wanted.most)
    found = wanted.read(result.view(-1).cpu().numpy(), tokens)
    assert sorted(found) == [item for item in range(n) if counts[item] >= 0]
    for item, one in found.items():
        row = slice(rows[item], rows[item] + 1)
        (expected,) = describe(
            logits[row].cpu(), tokens[item : item + 1].astype(np.int64), np.minimum(counts[item : item + 1], width)
        )  # fmt: skip
        assert one.token_id == expected.token_id and one.rank is None
        assert one.logprob == pytest.approx(expected.logprob, abs=1e-5)
        assert [token for token, _ in one.top_logprobs] == [token for token, _ in expected.top_logprobs]
        assert [value for _, value in one.top_logprobs] == pytest.approx(
            [value for _, value in expected.top_logprobs], abs=1e-5
        )


def test_nobody_wants_any() -> None:
    assert LogprobRows.of(np.full(4, -1), np.arange(4), 9) is None


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


@pytest.mark.parametrize("captures", [True, False])
async def test_items_get_their_own(path: Path, captures: bool) -> None:
    """Chunks, decodes and items that want none or no token at all, in any order, in graphs and without."""
    executors: list[LlmExecutor] = []
    for kind in (FakeDeviceExecutor, LlmExecutor):
        executor = kind.from_config(config(path))
        if isinstance(executor, FakeDeviceExecutor):
            executor.device = FakeDevice(captures=captures)
        await executor.warmup()
        await executor.begin_epoch(1)
        executors.append(executor)
    asked = (None, 0, 2, 211, None, 7)
    outputs: list[list[list[ItemOutput | None]]] = []
    for executor in executors:
        driver, heard = Driver(executor), []
        seqs = [
            driver.add([5 + i] * (1 + 3 * i), SamplingParams(seed=i, logprobs=count, presence_penalty=float(i % 2)))
            for i, count in enumerate(asked)
        ]  # fmt: skip
        for order in ([3, 0], [5, 1, 3], [2, 4, 0, 3, 1], [4, 3, 2, 1, 0]):
            heard.append(
                list(
                    await driver.step([(seqs[i], seqs[i].tokens[seqs[i].computed :], True, 0) for i in order])
                )
            )
        part = seqs[5].tokens[seqs[5].computed :]
        heard.append(
            list(await driver.step([(seqs[5], part, False, 0), (seqs[3], seqs[3].tokens[-1:], True, 0)]))
        )
        outputs.append(heard)
    ours = executors[0]
    assert isinstance(ours, FakeDeviceExecutor) and ours.device is not None
    assert bool(ours.device.replays) is captures
    for found, expected in zip(*outputs, strict=True):
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            if one is None or other is None:
                continue
            (mine,), (theirs,) = one.tokens, other.tokens
            assert mine.token_id == theirs.token_id
            assert mine.logprob == (
                None if theirs.logprob is None else pytest.approx(theirs.logprob, abs=1e-4)
            )
            assert [token for token, _ in mine.top_logprobs[:3]] == [
                token for token, _ in theirs.top_logprobs[:3]
            ]
            assert len(mine.top_logprobs) == len(theirs.top_logprobs)
