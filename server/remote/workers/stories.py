"""Stories of calls that workers answer. The whole story is in the server's process, where the call is scheduled; a worker says
what the call is, and at the end how it was answered.
"""

from __future__ import annotations

import time

from engine.story import Story
from server.http.call import CLIENT_CLOSED_REQUEST
from server.remote import messages as m
from server.telemetry.stories.record import AccessLine, CallStory
from server.telemetry.stories.ring import Stories


class WorkerStories:
    """In the server's process: the stories of one worker's calls. One writer: the event loop."""

    def __init__(self, stories: Stories) -> None:
        self._stories = stories
        self._open: dict[str, CallStory] = {}
        """Calls that are not answered, by the request's id."""

    def begin(self, facts: m.StoryFacts) -> CallStory:
        """The story of a call that comes to the engine, or is over without having come to it."""
        story = self._stories.begin(
            facts.received, facts.request_id, facts.route, facts.key, facts.client_request_id
        )
        self._open[facts.request_id] = story
        story.received_unix, story.id, story.model = facts.received_unix, facts.id, facts.model
        story.stream, story.parameters, story.prompt = facts.stream, facts.parameters, facts.prompt
        story.trace_headers, story.trace_id = facts.trace_headers, facts.trace_id
        return story

    def of(self, facts: m.StoryFacts | str) -> CallStory | None:
        """The story of the call that a part belongs to; None for a later part of one that is answered."""
        return self._open.get(facts) if isinstance(facts, str) else self.begin(facts)

    def answered(self, message: m.CallAnswered) -> None:
        """A call is answered."""
        request_id = message.story.request_id
        story = self._open.get(request_id) or self.begin(message.story)
        del self._open[request_id]
        story.answer(message.at, message.status, message.code, AccessLine(message.event, message.fields))

    def close(self) -> None:
        """The worker is gone, and its clients with it."""
        now = time.monotonic()
        for story in self._open.values():
            story.answer(now, CLIENT_CLOSED_REQUEST, None)
        self._open.clear()


def facts_of(story: CallStory) -> m.StoryFacts:
    """What a worker knows of a call."""
    return m.StoryFacts(
        story.received,
        story.received_unix,
        story.request_id,
        story.client_request_id,
        story.route,
        story.key,
        story.id,
        story.model,
        story.stream,
        story.parameters,
        story.prompt,
        story.trace_headers,
        story.trace_id,
    )


def times_of(story: Story) -> m.CallTimes:
    """When a call came to what, for the worker that answers it."""
    return m.CallTimes(story.queued, story.admitted, story.first_token, story.ended)


def take_times(story: Story, times: m.CallTimes) -> None:
    """Note them in the worker's own story, which `server-timing` and the answer's timings are made of."""
    story.queued, story.admitted = times.queued, times.admitted
    story.first_token, story.ended = times.first_token, times.ended
