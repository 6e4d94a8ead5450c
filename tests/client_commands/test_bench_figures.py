"""What `cohort bench` computes and what it sends: percentiles, figures, workloads, prompts."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from clients.bench import prompts as bench_prompts
from clients.bench.figures import figures, percentile, summary
from clients.bench.load import Run
from clients.bench.prompts import IdRange, KnownIds, Words
from clients.bench.stream import Served
from clients.bench.workloads import WORKLOADS, Workload, choose
from clients.http import Client
from tests.client_commands.bench_fake import FakeServer

# -- arithmetic ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values", [[3.0], [1.0, 2.0], [1.0, 2.0, 10.0], list(np.random.default_rng(0).random(101))]
)
@pytest.mark.parametrize("percent", [0, 50, 90, 99, 100])
def test_percentiles_are_numpys(values: list[float], percent: int) -> None:
    assert percentile(sorted(values), percent) == pytest.approx(np.percentile(values, percent))


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_figures_of_a_run() -> None:
    """Two streams, one of which has two tokens in its second event, and a failure."""
    workload = Workload("w", 3, 3, 10, 0, 3)
    served = [
        Served(1.0, [1.5, 1.6, 1.8], 10, 3, True),
        Served(1.0, [1.1, 1.5], 10, 3, True),
    ]  # fmt: skip
    found = figures(workload, Run([*served, "400: no"], 1.0, 3.0, 0.5))
    assert (found["requests"], found["failed"], found["first_error"], found["cut_short"]) == (
        3,
        1,
        "400: no",
        0,
    )
    assert found["output_tokens_per_s"] == 6 / 2.0
    assert found["total_tokens_per_s"] == 26 / 2.0
    assert found["requests_per_s"] == 1.0
    assert found["ttft_p50_ms"] == pytest.approx(300)
    assert found["ttft_p99_ms"] == pytest.approx(496)
    assert found["itl_p50_ms"] == pytest.approx(200)  # of 100, 200 and 400
    assert found["tpot_p50_ms"] == pytest.approx(175)  # of 150 and 200
    assert found["e2e_p50_ms"] == pytest.approx(650)
    assert found["tokens_per_event"] == 6 / 5
    assert found["client_us_per_event"] == pytest.approx(1e5)


def test_figures_of_nothing_and_of_one_token() -> None:
    workload = Workload("w", 1, 1, 10, 0, 1)
    nothing = figures(workload, Run(["no"], 1.0, 2.0, 0.0))
    assert nothing["output_tokens_per_s"] is None and nothing["ttft_p50_ms"] is None
    one = figures(workload, Run([Served(1.0, [1.5], None, 1, False)], 1.0, 2.0, 0.0))
    assert one["itl_p50_ms"] is None and one["tpot_p50_ms"] is None and one["ttft_p50_ms"] == 500
    assert one["total_tokens_per_s"] == 11  # the planned length, where the server does not count
    assert json.dumps([nothing, one], allow_nan=False)


def test_medians_over_runs() -> None:
    empty = dict.fromkeys(("output_tokens_per_s", *summary([])), None)
    runs = [{**empty, "output_tokens_per_s": value} for value in (10.0, 30.0, 11.0)]
    assert summary(runs)["output_tokens_per_s"] == {"median": 11.0, "min": 10.0, "max": 30.0}
    assert summary(runs)["itl_p50_ms"] is None


# -- workloads and prompts -------------------------------------------------------------------------------------------------


def test_workloads_by_name() -> None:
    numbers = {
        one.name: (one.requests, one.concurrency, one.prompt_tokens, one.shared_tokens, one.output_tokens)
        for one in choose(["single,burst", "prefix", "single"], {})
    }
    assert numbers == {
        "single": (4, 1, 128, 0, 64),
        "burst": (32, 32, 128, 0, 1),
        "prefix": (32, 8, 32, 512, 16),
    }
    [steady] = choose([], {"requests": 3, "concurrency": None})
    assert (steady.name, steady.requests, steady.concurrency) == ("steady", 3, 16)
    assert {one.context for one in WORKLOADS.values() if one.name.startswith("random")} == {384}


def test_prompts_have_their_length_and_are_never_the_same() -> None:
    client = Client("here", None)
    workload = Workload("w", 3, 1, 20, 8, 4)
    seen = set()
    for seed, run in itertools.product((0, 1), (0, 1)):
        made = bench_prompts.requests(client, "m", IdRange(10, 1000), workload, seed, run)
        assert made == bench_prompts.requests(client, "m", IdRange(10, 1000), workload, seed, run)
        prompts = [json.loads(one.partition(b"\r\n\r\n")[2])["prompt"] for one in made]
        assert len({tuple(prompt[:8]) for prompt in prompts}) == 1
        assert all(len(prompt) == 28 and min(prompt) >= 10 and max(prompt) < 1000 for prompt in prompts)
        seen |= {tuple(prompt) for prompt in prompts}
    assert len(seen) == 12
    [text] = bench_prompts.requests(client, "m", Words(2.0), Workload("w", 1, 1, 20, 8, 4), 0, 0)
    assert len(json.loads(text.partition(b"\r\n\r\n")[2])["prompt"].split()) == 14


def test_ranges_of_vocabularies() -> None:
    assert IdRange.of(151_936, "") == IdRange(1000, 100_000, "")
    assert IdRange.of(32_000, "") == IdRange(1000, 32_000, "")
    assert IdRange.of(896, "") == IdRange(112, 896, "")


async def test_a_large_vocabulary_takes_one_trial() -> None:
    with FakeServer() as server:
        assert await bench_prompts.find(Client(server.url, None), "m", None, None) == IdRange(1000, 100_000)
        assert len(server.asked) == 1


async def test_a_small_vocabulary_is_told_or_learned() -> None:
    with FakeServer(vocab=896) as server:
        client = Client(server.url, None)
        assert await bench_prompts.find(client, "m", None, 896) == IdRange(112, 896, "/v1/executors")
        assert await bench_prompts.find(client, "m", 500, None) == IdRange(62, 500, "--vocab-size")
        learned = await bench_prompts.find(client, "m", None, None)
        assert isinstance(learned, KnownIds) and len(learned.ids) >= 32 and max(learned.ids) < 896


async def test_text_where_ids_are_not_taken() -> None:
    """Prompts are as long as the server counts them: two tokens a word in this one."""
    with FakeServer(takes_ids=False) as server:
        assert await bench_prompts.find(Client(server.url, None), "m", None, None) == Words(2.0)
    with FakeServer(takes_ids=False, tokenize=False, counts=False) as server:
        assert await bench_prompts.find(Client(server.url, None), "m", None, None) == Words(1.3)
