"""What travels between API workers, replicas and the server, and what does not."""

from __future__ import annotations

import numpy as np
import pytest

from engine.request import Request, RequestContext
from engine.story import Story
from executors.contract import SamplingParams
from server.remote import messages as m
from server.remote.codec import WireError, decoder, encode


def submit(prompt: np.ndarray) -> m.Submit:
    return m.Submit(1, 2, 0, [Request(RequestContext("r", 0.0), prompt, SamplingParams(), 7)], False)


def test_messages_come_out_frame_by_frame_however_bytes_are_cut() -> None:
    frames = [[m.Abort(1), m.Finish(2, 3)], [submit(np.arange(5, dtype=np.int32))], []]
    data = b"".join(bytes(encode(frame)) for frame in frames)
    one = decoder(m.ToServer)
    came = [frame for byte in data for frame in one.feed(bytes([byte]))]
    assert came[0] == frames[0] and came[2] == []
    [[back]] = came[1:2]
    request = back.requests[0]
    assert request.prompt_token_ids.dtype == np.int32 and request.prompt_token_ids.tolist() == [0, 1, 2, 3, 4]
    assert request.prompt_token_ids.flags.writeable  # a copy: it does not hold the buffer of the link
    assert type(request.context.story) is Story


def test_what_cannot_travel_is_named() -> None:
    for value in (object(), np.zeros((2, 2), np.int32), np.array([object()])):
        with pytest.raises(WireError, match="cannot travel"):
            encode([m.Finish(1, value)])  # type: ignore[arg-type]


def test_garbage_is_no_message() -> None:
    one = decoder(m.ToServer)
    assert one.feed(b"\x01") == []
    with pytest.raises(WireError):
        one.feed(b"\x00\x00\x00\xc1")
    with pytest.raises(WireError, match="refused"):
        decoder(m.ToServer).feed(b"\xff\xff\xff\xff")
