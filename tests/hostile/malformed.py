"""Bodies that are no JSON, or not the JSON of a request. Drawn by hypothesis."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from tests.hostile.case import Hostile, call, encoded
from tests.hostile.fields import (
    CHAT,
    COMPLETION,
    COUNT_TOKENS,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGES,
    OLLAMA_CHAT,
    OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS,
    OLLAMA_GENERATE,
    OLLAMA_SHOW,
    RERANK,
    RESPONSES,
    SCORE,
    TOKENIZE,
    VALID,
    other_than,
)

PATHS = sorted(VALID)
_LONGER: dict[str, dict[str, Any]] = {
    MESSAGES: {**VALID[MESSAGES], "stop_sequences": ["a", "b"], "system": "ü", "stream": False},
    COUNT_TOKENS: {**VALID[COUNT_TOKENS], "system": [{"type": "text", "text": "x"}]},
    RESPONSES: {**VALID[RESPONSES], "instructions": "ü", "metadata": {"a": "b"}, "stream": False},
    OLLAMA_CHAT: {**VALID[OLLAMA_CHAT], "stream": False, "think": True, "keep_alive": "5m", "format": "json"},
    OLLAMA_GENERATE: {**VALID[OLLAMA_GENERATE], "system": "ü", "raw": False, "options": {"stop": ["a"]}},
    OLLAMA_EMBED: {**VALID[OLLAMA_EMBED], "truncate": True},
    OLLAMA_EMBEDDINGS: {**VALID[OLLAMA_EMBEDDINGS], "keep_alive": -1},
    OLLAMA_SHOW: {**VALID[OLLAMA_SHOW], "verbose": False},
    CHAT: {**VALID[CHAT], "stop": ["a", "b"], "temperature": 0.5, "logit_bias": {"7": 1}, "stream": False},
    COMPLETION: {**VALID[COMPLETION], "echo": True, "logprobs": 2, "seed": 7, "user": "ü", "stop": "\n"},
    RERANK: {"query": "ü", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": False},
    SCORE: {"queries": ["ü", "a"], "documents": ["b", "c"], "truncate_prompt_tokens": -1},
    EMBEDDINGS: {"input": ["a", "bc"], "encoding_format": "float"},
    TOKENIZE: {"prompt": 'quoted "text" \\ ✓', "add_special_tokens": True},
    DETOKENIZE: {"tokens": [5, 6, 7, 8]},
}
_BAD_UTF8 = st.sampled_from(
    [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80", b"\xfe\xff"]
)
_BAD_LITERALS = [
    b"nan", b"-NaN", b"Inf", b"undefined", b"True", b"None", b"01", b"+1", b"1.", b".5", b"0x10", b"1e", b"'x'",
    b"\"a\nb\"", b'"\\x41"', b'"\\u12"', b'"\\ud800"', b"[1,]", b"{'a':1}", b"[1 2]", b"/* c */1", b"1 // c", b"{\"a\":1,}",
    b"\"\x00\"", b"tru", b"nulll", b"--1", b"1_000", b"[", b"}", b"\"", b"",
]  # fmt: skip


def _is_json(text: bytes) -> bool:
    """JSON of RFC 8259, or what Python's encoder makes of NaN and Infinity: where a number of ours should be these are refused
    (`fields.py`), and where nobody reads the value they do no harm. Text is UTF-8 without half of a surrogate pair, behind
    one byte order mark or none."""
    try:
        json.dumps(
            json.loads(text.removeprefix(b"\xef\xbb\xbf").decode("utf-8")), ensure_ascii=False
        ).encode()
    except (ValueError, RecursionError):
        return False
    return True


@st.composite
def broken_json(draw: st.DrawFn) -> Hostile:
    """A valid body of which some bytes are missing, doubled, changed or in another encoding."""
    path = draw(st.sampled_from(PATHS))
    text = json.dumps(_LONGER[path], ensure_ascii=draw(st.booleans())).encode()
    place = draw(st.integers(0, len(text) - 1))
    match draw(st.integers(0, 6)):
        case 0:
            text = text[:place]
        case 1:
            text = text[:place] + draw(_BAD_UTF8) + text[place:]
        case 2:
            text = text[:place] + bytes([draw(st.integers(0, 255))]) + text[place + 1 :]
        case 3:
            text = text[:place] + draw(st.binary(min_size=1, max_size=6)) + text[place:]
        case 4:
            text = text.decode().encode(
                draw(st.sampled_from(["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7"]))
            )
            if text == text.decode("utf-8", "replace").encode("utf-8") and _is_json(text):
                text += b"\xff"  # UTF-7 of ASCII is ASCII
        case 5:
            text += draw(st.sampled_from([b"{}", b"\x00", b",", b"]", b"x", b"[]", b"null"]))
        case _:
            text = text[:place] + text[place + draw(st.integers(1, 5)) :]
    assume(not _is_json(text))
    return call("broken JSON", path, text)


@st.composite
def odd_value(draw: st.DrawFn) -> Hostile:
    """A field, known or not, whose value is no JSON."""
    path = draw(st.sampled_from(PATHS))
    literal = draw(st.sampled_from(_BAD_LITERALS))
    name = draw(
        st.sampled_from(
            ["temperature", "n", "metadata", "user", "tokens", "tools", "stop", "messages", "input"]
        )
    )
    body = encoded(VALID[path])[:-1] + b', "%s": %s}' % (name.encode(), literal)
    assume(not _is_json(body))
    return call("no JSON value", path, body)


@st.composite
def no_request(draw: st.DrawFn) -> Hostile:
    """JSON that is no request: another kind of value, or an object without what is required."""
    path = draw(st.sampled_from(PATHS))
    required = {"messages", "prompt", "input", "tokens"}
    members = st.dictionaries(
        st.text(max_size=8).filter(lambda name: name not in required), other_than(), max_size=4
    )
    return call("no request", path, draw(other_than("object") | members | st.none()))


@st.composite
def twice(draw: st.DrawFn) -> Hostile:
    """A key twice: the last one counts, and is the bad one."""
    path = draw(st.sampled_from(PATHS))
    names = {
        **dict.fromkeys((EMBEDDINGS, RESPONSES, OLLAMA_EMBED), "input"),
        DETOKENIZE: "tokens",
        RERANK: "query",
        SCORE: "text_1",
        **dict.fromkeys((CHAT, MESSAGES, COUNT_TOKENS), "messages"),
        OLLAMA_SHOW: "model",
        **dict.fromkeys((CHAT, MESSAGES, COUNT_TOKENS, OLLAMA_CHAT), "messages"),
    }
    name = names.get(path, "prompt")
    wrong = draw(other_than("text", "list"))
    body = encoded(VALID[path])[:-1] + b', "%s": ' % name.encode() + encoded(wrong) + b"}"
    return call("a key twice", path, body, name)


@st.composite
def deep(draw: st.DrawFn) -> Hostile:
    """Lists or objects in each other, deeper than any parser's stack, somewhere in a body."""
    path = draw(st.sampled_from(PATHS))
    depth = draw(st.sampled_from([300, 1000, 5000, 20_000, 100_000]))
    name = draw(
        st.sampled_from(
            ["messages", "prompt", "input", "tokens", "tools", "metadata", "chat_template_kwargs", "x"]
        )
    )
    opened, closed = draw(st.sampled_from([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")]))
    inside = opened * depth + b"1" + closed * (depth if draw(st.booleans()) else 0)
    return call("deep JSON", path, encoded(VALID[path])[:-1] + b', "%s": %s}' % (name.encode(), inside))
