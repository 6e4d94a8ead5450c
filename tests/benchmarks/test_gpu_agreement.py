"""Part agreement-bf16 of gpu-check: what it computes, what it compares, and that it notices what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu import shapes
from benchmarks.gpu.part import Failed, Options
from executors.llm.attention.key_pieces import PieceRule
from executors.llm.attention.packed import StepMeta
from executors.llm.kernel_support.kernel_choice import MAKERS
from executors.llm.memory.kv_cache import KvCache
from executors.llm.step.launched.graphs import StepFacts, decode_shapes, fits, mixed_shapes
from executors.llm.step.launched.inputs import StepShape
from tests.gpu import agreement_bf16 as part
from tests.gpu.agreement_bf16 import Row, Text, compare, judge, replays, schedule
from tests.gpu.device_fakes import FakeDeviceExecutor, PagedTorch
from tests.tiers import sweep

WHOLE = part.work(tiny=False)[1]
QUERIES = 64
"""Of a tile of this shape's: 128 rows, two heads a key."""


# -- what is computed ----------------------------------------------------------------------------------------------------


def test_texts_are_as_long_as_they_are_to_be() -> None:
    lengths = sorted(len(text.tokens) for text in WHOLE)
    assert (len(lengths), lengths[0], lengths[-1]) == (48, 8, 3_000)
    assert {end + off for end in (64, 128, 512, 1024) for off in (-1, 0, 1)} <= set(lengths)
    assert all(1 <= text.prompt < len(text.tokens) for text in WHOLE)
    assert sum(lengths) * 16_384 < part._KV_BYTES / 2, "KV of this shape, bytes a token"
    assert [one.tokens for one in part.work(tiny=False)[1]] == [one.tokens for one in WHOLE]
    assert max(max(text.tokens) for text in WHOLE) < shapes.SHAPES[shapes.SHALLOW]["vocab_size"]
    assert shapes.SHAPES[shapes.SHALLOW] == shapes.SHAPES[shapes.SMALL] | {"num_hidden_layers": 4}


@pytest.mark.parametrize("given", [WHOLE, part.work(tiny=True)[1]])
def test_every_token_is_computed_once_and_those_behind_the_prompt_one_by_one(given: list[Text]) -> None:
    done = [0] * len(given)
    for step in schedule(given):
        assert len({i for i, _ in step}) == len(step) and sum(count for _, count in step) <= part._MOST_TOKENS
        for i, count in step:
            assert count > 0 and (count == 1 or done[i] + count <= given[i].prompt)
            done[i] += count
    assert done == [len(text.tokens) for text in given]


def test_both_executors_have_the_same_weights_and_limits(tmp_path: Path) -> None:
    """On a GPU, graphs over our own attention kernels against eager forwards over torch's."""
    served, plain = (
        part.config_of(Options("cuda"), shapes.SHALLOW, tmp_path, len(WHOLE), plain=plain)
        for plain in (False, True)
    )
    assert (served.attention.backend, plain.attention.backend) == ("triton", "torch")
    assert (served.optimization.enforce_eager, plain.optimization.enforce_eager) == (False, True)
    assert replace(plain, attention=served.attention, optimization=served.optimization) == served
    assert served.load_format == "dummy" and served.dtype == "auto" and served.device == "cuda"
    assert shapes.SHAPES[shapes.SHALLOW]["torch_dtype"] == "bfloat16"
    assert served.max_num_seqs == 48 and served.memory.kv_cache_memory_bytes == part._KV_BYTES
    # 132 multiprocessors, three programs each, eight key heads: one row of this length gets 49 splits.
    assert served.max_model_len is not None and min(132 * 3 // 8, -(-served.max_model_len // 256), 64) == 49


def facts_of(steps: list[part.Step]) -> list[StepFacts]:
    found = []
    for step in steps:
        counts = np.array([count for _, count in step])
        chunks, decodes = counts[counts > 1], int((counts == 1).sum())
        tiles = int((-(-chunks // QUERIES)).sum())
        found.append(StepFacts(int(counts.sum()), len(step), tiles, decodes, len(step)))
    return found


def test_every_graph_is_wanted_most_of_them_with_padding() -> None:
    """Of those that a server for so many sequences captures."""
    known = [*decode_shapes(len(WHOLE)), *mixed_shapes(len(WHOLE), part._MOST_TOKENS, QUERIES)]
    known.sort(key=lambda shape: (shape.tokens, shape.listed))
    padded: dict[StepShape, bool] = {}
    without = 0
    for facts in facts_of(schedule(WHOLE)):
        shape = next((one for one in known if fits(one, facts)), None)
        if shape is None:
            without += 1
            assert facts.tokens > 2_048
        else:
            padded[shape] = padded.get(shape, False) or facts.items < shape.items
    assert set(padded) == set(known) and without >= 2
    assert {shape.items for shape, is_padded in padded.items() if not is_padded} <= {1, 2}


def test_the_longest_texts_are_alone_in_many_steps() -> None:
    """Their keys get 49 splits then."""
    done = [0] * len(WHOLE)
    alone = []
    for step in schedule(WHOLE):
        for i, count in step:
            done[i] += count
        if len(step) == 1 and step[0][1] == 1:
            alone.append(done[step[0][0]])
    assert len(alone) >= 8 and sum(length > 2_000 for length in alone) >= 4


# -- how it compares -----------------------------------------------------------------------------------------------------


def row(*values: float, tokens: tuple[int, ...] = (), text: int = 0) -> Row:
    tokens = tokens or tuple(range(len(values)))
    return Row(text, 9, tuple(zip(tokens, values, strict=True)))


EXPECTED = row(-1.0, -1.2, -3.0)


@pytest.mark.parametrize(
    ("found", "most", "words"),
    [
        (row(-1.0, -1.2, -3.0), 0.0, ""),
        (row(-1.04, -1.2, -3.04), 0.04, ""),
        (row(-1.0, -1.2, -3.14), 0.14, ""),
        (row(-1.0, -1.2, -3.16), 0.16, "logprobs are off by 0.160"),
        (row(-1.08, -1.28, -3.08), 0.08, "on average by 0.080"),
        (row(-1.09, -1.1, -3.0), 0.1, "on average by 0.063"),
        # Another token in third place: it is at most as likely there as the last one named.
        (row(-1.0, -1.2, -2.9, tokens=(0, 1, 7)), 0.1, ""),
        (row(-1.0, -1.2, -2.7, tokens=(0, 1, 7)), 0.3, "off by 0.300"),
        (row(-1.2, -1.21, -3.0, tokens=(1, 0, 2)), 0.21, "off by 0.210"),
        (row(math.nan, -1.2, -3.0), math.inf, "off by inf"),
        (Row(0, 9, ()), math.inf, "off by inf"),
    ],
)  # fmt: skip
def test_differences(found: Row, most: float, words: str) -> None:
    figures = compare([found], [EXPECTED])
    assert figures["largest_logprob_difference"] == pytest.approx(most)
    assert words in " ".join(figures["wrong"]) and bool(figures["wrong"]) is bool(words)
    if words:
        with pytest.raises(Failed, match=r"text 0 behind 9 tokens: .* of 1 rows are off"):
            judge(figures, replays(None, part.Counter(), 1), as_served=False)


@pytest.mark.parametrize(
    ("second", "wrong", "bins"),
    [(-1.005, False, {"up to 0.01": 1}), (-1.09, False, {"up to 0.1": 1}), (-1.104, True, {"above 0.1": 1})],
)
def test_another_token_may_be_the_most_likely_where_the_gap_is_small(
    second: float, wrong: bool, bins: dict[str, int]
) -> None:
    expected = row(-1.0, second, *(-3.0 - i for i in range(18)))
    ours = list(expected.top)
    ours[:2] = [(1, second + 0.06), (0, second + 0.05)]
    figures = compare([expected, replace(expected, top=tuple(ours))], [expected] * 2)
    assert figures["argmax_equal"] == 1 and figures["argmax_differs_by_gap"] == bins
    assert figures["rows_with_a_clear_gap"] == 2 * wrong
    assert figures["wrong"] == (
        ["text 0 behind 9 tokens: another token is the most likely, by a gap of 0.104"] if wrong else []
    )


def test_rows_of_something_else_are_not_compared() -> None:
    for found in ([], [EXPECTED] * 2, [replace(EXPECTED, place=8)]):
        with pytest.raises(Failed, match="rows are there, 1 are expected"):
            judge(compare(found, [EXPECTED]), replays(None, part.Counter(), 1), as_served=False)


def test_what_was_not_replayed_was_not_compared() -> None:
    figures = compare([EXPECTED], [EXPECTED])
    one, two = decode_shapes(2)
    graphs: Any = type("Graphs", (), {"shapes": (one, two)})
    seen = replays(graphs, part.Counter({one: 3}), 4)
    assert seen == {
        "graphs_replayed": {"1 sequences": 3}, "never_replayed": ["2 sequences"], "steps_replayed": 3, "steps_launched": 1,
    }  # fmt: skip
    with pytest.raises(Failed, match="never replayed: 2 sequences"):
        judge(figures, seen, as_served=True)
    with pytest.raises(Failed, match="no graph was replayed"):
        judge(figures, replays(None, part.Counter(), 4), as_served=True)
    judge(figures, replays(graphs, part.Counter({one: 3, two: 1}), 4), as_served=True)


# -- over a device that is played ----------------------------------------------------------------------------------------


class Splitting(PagedTorch):
    """One sequence alone has its keys in 49 splits, two have 24, and so on."""

    wrong: int | None = None
    """Splits in which results are summed and not weighed."""

    def most_pieces(self, rows: int, longest: int) -> int:
        return max(rows, 49)

    def pieces(self, lengths: Any) -> Any:
        return PieceRule(1, 1, count=max(1, 49 // max(1, len(lengths)))).cut(lengths)

    def pieces_last(self, lengths: Any) -> int:
        return 0

    def bind(self, meta: StepMeta, cache: KvCache) -> Callable[..., torch.Tensor]:
        attend = super().bind(meta, cache)
        if self.wrong is None or not len(meta.pieces):
            return attend

        def summed(*given: Any) -> torch.Tensor:
            splits = meta.pieces[:, 5].max()  # not asked for: in a graph other steps follow
            return attend(*given) * torch.where(splits == self.wrong, splits, 1)

        return summed


MAKERS["splitting"] = lambda wish: Splitting()


class Served(part.WatchedExecutor, FakeDeviceExecutor):
    """A CPU that takes itself for a GPU, watched."""

    order = ("splitting",)


@pytest.fixture
def over_fakes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, Any]]:
    def run() -> dict[str, Any]:
        monkeypatch.setattr(part, "WatchedExecutor", Served)
        found: dict[str, Any] = {}
        try:
            part.run(Options("cpu", tiny=True), found.update)
        except Failed as failed:
            found["failed"] = str(failed)
        return found

    return run


@pytest.mark.long
def test_graphs_are_compared_and_named(over_fakes: Callable[[], dict[str, Any]]) -> None:
    found = over_fakes()
    assert "failed" not in found and found["largest_logprob_difference"] < 1e-4
    expected = sum(len(text.tokens) - text.prompt + 1 for text in part.work(tiny=True)[1])
    assert found["rows_compared"] == found["argmax_equal"] == expected
    assert found["steps_replayed"] + found["steps_launched"] == found["steps"]
    assert found["graphs_replayed"]["1 sequences"] >= 2 and "24 mixed tokens" in found["graphs_replayed"]
    assert sum(found["graphs_replayed"].values()) == found["steps_replayed"] > found["steps"] // 2
    assert "attention: torch" in found["compared_with"][0] and "paged torch" in found["executor_notes"][0]


@sweep(every=2)
@pytest.mark.parametrize("splits", [49, 24])
def test_a_backend_that_is_wrong_in_so_many_splits_only_is_caught(
    splits: int, over_fakes: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """49: one sequence alone, and nothing else."""
    monkeypatch.setattr(Splitting, "wrong", splits)
    found = over_fakes()
    assert found["failed"].startswith("text ") and found["largest_mean_of_a_row"] > part.MEAN
    assert 0 < found["rows_off"] < found["rows_compared"]
