"""The reader of streamed answers that bench, chat and demo share."""

from __future__ import annotations

import pytest

from clients.event_stream import EventReader

BODY = (
    b': keep-alive\n\nevent: x\ndata: {"a": "\\u00e9"}\n\nid: 7\r\ndata:{"b": "data: "}\r\n\r\n'
    b'data: {"c": 1}\ndata: [DONE]\n\n'
)
DATA = [b'{"a": "\\u00e9"}', b'{"b": "data: "}', b'{"c": 1}']


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_the_cuts_do_not_matter(size: int) -> None:
    reader = EventReader()
    events = [event for i in range(0, len(BODY), size) for event in reader.feed(BODY[i : i + size])]
    assert events == DATA and reader.done


def test_an_event_counts_when_its_line_is_whole() -> None:
    reader = EventReader()
    assert reader.feed(b'data: {"a": 1}') == []
    assert reader.feed(b"\nda") == [b'{"a": 1}']
    assert reader.feed(b"ta: [DONE]") == [] and not reader.done
    assert reader.feed(b"\n") == [] and reader.done
