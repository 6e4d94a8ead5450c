"""`timings` in answers, and the header `server-timing`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.server.api_schema import check_answer
from tests.server.fakes import House, events
from tests.server.test_on_engine import ask, cached, serving


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_timings_are_told_if_asked_for(tmp_path: Path, endpoint: str) -> None:
    async with serving(tmp_path) as house:
        await ask(house, endpoint)
        answer = await ask(house, endpoint, timings=True)
        assert "timings" not in await ask(house, endpoint)
        told = answer["timings"]
        assert told["cache_n"] == cached(answer) > 0
        assert told["prompt_n"] + told["cache_n"] == answer["usage"]["prompt_tokens"]
        assert told["predicted_n"] == 8 and told["predicted_ms"] > 0 and told["prompt_ms"] > 0
        assert told["predicted_per_second"] == pytest.approx(7000 / told["predicted_ms"], rel=0.01)
        assert told["ttft_ms"] == pytest.approx(
            told["prepare_ms"] + told["queue_ms"] + told["prompt_ms"], abs=0.01
        )
        response = await getattr(house, "chat" if endpoint == "chat" else "complete")(
            stream=True, timings=True, max_tokens=3, ignore_eos=True
        )
        check_answer(response)
        *chunks, last, done = events(response)
        assert done == "[DONE]" and not any("timings" in chunk for chunk in chunks)
        assert json.loads(last)["choices"] == [] and json.loads(last)["timings"]["predicted_n"] == 3
        assert "usage" not in json.loads(last), "which was not asked for"


async def test_the_header_tells_the_parts_of_a_queued_call(tmp_path: Path) -> None:
    async with serving(tmp_path) as house:
        whole = await house.complete(max_tokens=3, ignore_eos=True)
        stream = await house.chat(stream=True, max_tokens=3, ignore_eos=True)
        refused = await house.complete(max_tokens=-1)
    number = r";dur=\d+\.\d"
    parts = [f"{part}{number}" for part in ("prepare", "queue", "prefill", "decode")]
    assert re.fullmatch(", ".join(parts), whole.headers["server-timing"])
    assert re.fullmatch(", ".join(parts[:3]), stream.headers["server-timing"])
    assert "server-timing" not in refused.headers


async def test_a_fake_without_an_engine_has_no_times(house: House) -> None:
    told = (await house.chat(timings=True)).json()["timings"]
    assert told["prompt_ms"] == told["predicted_per_second"] == 0.0
