"""Hostile inputs against a real server: each is refused by a 4xx in the usual form, and two victims beside them, a seeded stream
and a greedy one with logprobs, do not change by a bit.

`make test-all ARGS='--full tests/hostile'` sends 10,000; the short form in the ordinary suite is the fixed list and some drawn
ones. To send a batch again: `Campaign.drawn(total, first_seed)` with the seed that the fault names.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.server_process import ServerProcess
from tests.hostile.campaign import Campaign, Report, drawn, innocents
from tests.hostile.case import KEY, VICTIM_KEY, Hostile, encoded, raw
from tests.hostile.victim import Victims, victims
from tests.hostile.wire import Answer
from tests.metrics_text import without_model

pytestmark = pytest.mark.long

KEYS = ["--api-key", KEY, "--api-key", VICTIM_KEY, "--metrics-key", "of-the-scraper"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(
        ["cohort-tiny", "--deterministic", *KEYS], tmp_path_factory.mktemp("hostile")
    ) as running:
        yield running


def campaign_against(server: ServerProcess) -> Campaign:
    headers = {"Authorization": f"Bearer {KEY}"}
    [executor] = httpx.get(f"{server.url}/v1/executors", headers=headers).json()["data"]
    return Campaign(server.url, executor["info"]["logits_width"], executor["info"]["max_model_len"])


def check(server: ServerProcess, report: Report, seen: Victims, rounds: int) -> None:
    assert not report.faults, "\n".join(report.faults[:10])
    assert not seen.faults, seen.faults[:3]
    assert seen.rounds >= rounds, "the victims were hardly there"
    headers = {"Authorization": "Bearer of-the-scraper"}
    metrics = without_model(httpx.get(f"{server.url}/metrics", headers=headers).text)
    for name in ("cohort_requests_running", "cohort_requests_waiting", "cohort_kv_blocks_used"):
        assert f"\n{name} 0.0\n" in metrics, name
    assert "\ncohort_executor_epoch 1.0\n" in metrics, "the executor died of an input"
    log = server.log()
    assert "a request failed" not in log and "Traceback" not in log, log[-4000:]
    for key in (KEY, VICTIM_KEY):
        assert key not in log
    assert httpx.get(f"{server.url}/ready").status_code == 200


async def test_the_list_and_some_drawn(server: ServerProcess) -> None:
    campaign = campaign_against(server)
    async with victims(server.url) as seen:
        assert not (faults := await innocents(server.url)), faults
        await campaign.listed(bombs=False, large=False)
        await campaign.drawn(campaign.report.count + 300)
    check(server, campaign.report, seen, rounds=4)


@pytest.mark.long(full=True)
@pytest.mark.timeout(1200)
async def test_10_000(server: ServerProcess) -> None:
    begun = time.monotonic()
    campaign = campaign_against(server)
    async with victims(server.url) as seen:
        assert not (faults := await innocents(server.url)), faults
        await campaign.listed(bombs=True, large=True)
        await campaign.drawn(10_000, first_seed=1000)
    print("", *campaign.report.lines(), sep="\n")
    print(
        f"  two victims, {seen.rounds} rounds, {len(seen.faults)} unlike; {time.monotonic() - begun:.0f} s in all"
    )
    check(server, campaign.report, seen, rounds=100)


def test_faults_are_noticed() -> None:
    """Whatever a server may do instead of refusing."""
    case = Hostile("x", (b"",), param="n")
    good = b'{"error": {"message": "m", "type": "t", "param": "n.0", "code": null}}'
    id_ = {"x-request-id": "req_1"}
    assert case.fault(Answer(400, id_, good, 0)) is None
    for answer in (
        Answer(200, id_, b"{}", 0), Answer(500, id_, good, 0), Answer(503, id_, good, 0), Answer(None, {}, b"", 0, "closed"),
        Answer(400, {}, good, 0), Answer(400, id_, b"Bad Request", 0), Answer(400, id_, good.replace(b'"n.0"', b'"m"'), 0),
        Answer(400, id_, good.replace(b'"n.0"', b"null"), 0), Answer(400, id_, good.replace(b'"m"', b'""'), 0),
        Answer(400, id_, good.replace(b'"m"', b'"' + b"m" * 5000 + b'"'), 0), Answer(400, id_, b'{"detail": "m"}', 0),
    ):  # fmt: skip
        assert case.fault(answer), answer
    theirs = b'{"type": "error", "error": {"type": "t", "message": "\'n.0\' m"}, "request_id": "req_1"}'
    assert case.fault(Answer(400, id_, theirs, 0)) is None
    for old, new in (
        (b"n.0", b"m.0"),
        (b"req_1", b"req_2"),
        (b'"t"', b'"t", "param": "n"'),
        (b', "request_id', b', "id'),
    ):
        assert case.fault(Answer(400, id_, theirs.replace(old, new), 0)), new
    ollamas = b'{"error": "\'n.0\' m"}'
    assert case.fault(Answer(400, id_, ollamas, 0)) is None
    for old, new in ((b"n.0", b"m.0"), (b'm"', b'm", "param": "n"'), (b"'n.0' m", b"")):
        assert case.fault(Answer(400, id_, ollamas.replace(old, new), 0)), new
    silent = Hostile("x", (b"",), silent=True)
    assert silent.fault(Answer(None, {}, b"", 0, "the connection ended: closed")) is None
    assert silent.fault(Answer(None, {}, b"", 0, "no whole answer within 10 s"))


def test_the_same_seed_draws_the_same_inputs() -> None:
    assert drawn(896, 2048, 30, 7) == drawn(896, 2048, 30, 7) != drawn(896, 2048, 30, 8)


def test_odd_numbers_are_written_as_they_stand() -> None:
    assert (
        encoded({"a": [raw("1e999"), "x"], "b": raw("9" * 30)})
        == b'{"a": [1e999, "x"], "b": ' + b"9" * 30 + b"}"
    )
    assert encoded({"a": "\ud800", "n": float("nan")}) == b'{"a": "\\ud800", "n": NaN}'
