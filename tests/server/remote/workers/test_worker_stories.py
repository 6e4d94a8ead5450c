"""A call that a worker answers: its story is whole in the server's process, and its times come back to the worker."""

from __future__ import annotations

import numpy as np

from engine.mailbox import Mailbox
from engine.request import Request, RequestContext
from executors.contract import SamplingParams
from server.remote.workers.remote_parts import RemoteStories
from server.telemetry.stories.record import AccessLine, CallStory
from tests.server.remote.workers.test_sequences import Pair, paired, until, whole


def begin(pair: Pair, max_tokens: int) -> tuple[CallStory, Mailbox]:
    """A call of two choices, which its reader calls 7 and 8."""
    story = RemoteStories(pair.worker).begin(0.0, "req_1", "/v1/completions", "alice", "mine")
    context = RequestContext("cmpl-1", 0.0, key_name="alice", story=story)
    asked = Request(context, np.arange(1, 20, dtype=np.int32), SamplingParams(), max_tokens)
    mailbox = Mailbox()
    pair.remote.submit_choices([asked, asked], mailbox, 7)
    return story, mailbox


async def test_a_story_is_told_in_both_processes() -> None:
    async with paired() as pair:
        story, mailbox = begin(pair, 5)
        assert {key: len(tokens) for key, tokens in (await whole(mailbox, 2)).items()} == {7: 5, 8: 5}
        # A part that comes when the parts before it have ended.
        context = RequestContext("cmpl-1", 0.0, key_name="alice", story=story)
        later = Request(context, np.arange(50, 53, dtype=np.int32), SamplingParams(), 1)
        pair.remote.submit(later, mailbox, 9)
        await whole(mailbox)
        assert story.queued and story.admitted and story.first_token and story.ended
        assert story.queued <= story.admitted <= story.first_token <= story.ended
        lines: list[AccessLine | None] = []
        pair.stories.on_end(lambda told: lines.append(told.line))
        line = AccessLine("POST /v1/completions", {"status": 200, "ms": 1.5})
        story.answer(story.ended, 200, None, line)
        await until(lambda: lines, pair)
        assert lines == [line]
        told = pair.stories.get("req_1")
        assert told is not None
        assert (told["outcome"], told["key"], told["client_request_id"]) == ("length", "alice", "mine")
        assert (told["prompt_tokens"], told["output_tokens"], told["choices"]) == (22, 11, 3)
        assert {event.get("choice") for event in told["events"]} == {None, 7, 8, 9}


async def test_a_dead_workers_calls_are_over() -> None:
    async with paired() as pair:
        _, mailbox = begin(pair, 5000)
        await mailbox.take()
        assert pair.stories.list()[0][0]["state"] == "running"
        pair.worker.close()
        await until(lambda: pair.core.stats().running == 0, pair)
        [told], _ = pair.stories.list()
        assert (told["state"], told["outcome"], told["status"]) == ("ended", "abort", 499)
