"""Of the fixed list, what is wrong around the body, and bodies of megabytes; and what only looks hostile."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hostile.case import Hostile, call, encoded, head, posted
from tests.hostile.fields import CHAT, COMPLETION, DETOKENIZE, EMBEDDINGS, MESSAGES, TOKENIZE, USER, VALID
from tests.hostile.http_tricks import ADMIN, NO_KEY, PROTECTED


def large() -> Iterator[Hostile]:
    """Bodies over the limit, or just below it and refused for what they hold."""
    too_much = b'{"prompt": "' + b"x" * (17 << 20) + b'"}'
    refused = frozenset({413})
    yield Hostile("too large", posted(COMPLETION, too_much), statuses=refused, alone=True)
    start = head("POST", COMPLETION, [("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")])
    chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    # The refusal comes in the middle of sending: the connection's end may overtake it.
    yield Hostile("too large", (start, *[chunk] * 18), statuses=refused, alone=True, silent=True)
    yield Hostile(
        "too large",
        (head("POST", COMPLETION, [("Content-Length", str(1 << 40))]),),
        statuses=refused,
        alone=True,
    )
    yield call(
        "large",
        COMPLETION,
        encoded(VALID[COMPLETION])[:-1] + b', "prompt": "' + b"x" * (6 << 20) + b'"}',
        "prompt",
    )
    yield call("large", CHAT, b"[" * (4 << 20))
    yield call("large", COMPLETION, b'{"prompt": [' + b"5," * (2 << 20) + b"5]}")
    yield call("large", COMPLETION, b'{"prompt": [' + b"[5]," * (1 << 20) + b"[5]]}")
    yield call("large", CHAT, b'{"messages": [' + b'{"role":"user","content":"x"},' * 100_000 + b"5]}")


def on_the_wire() -> Iterator[Hostile]:
    """What is wrong with the request around the body."""
    body = encoded(VALID[COMPLETION])
    kind = "no HTTP"
    for text in (
        b"HELLO\r\n\r\n", b"GET\r\n\r\n", b"GET /live HTTP/9.9\r\nHost: x\r\n\r\n", b"GET /live HTTP/1.1 x\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00" * 64 + b"\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://[x HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /live HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /live HTTP/1.1\r\n: x\r\n\r\n",
        b"GET /live HTTP/1.1\r\nHost : x\r\n\r\n", b"GET /live HTTP/1.1\r\nbad\x00name: y\r\n\r\n",
        b"GET /live HTTP/1.1\r\nX: a\x00b\r\n\r\n", b"GET /live HTTP/1.1\r\nX: a\rb\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"{\"prompt\": \"x\"}\r\n\r\n", b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"G\xc3\x89T / HTTP/1.1\r\n\r\n", b"GET /live HTTP/1.1\r\nX-Request-Id: \x01\x02\r\n\r\n",
    ):  # fmt: skip
        yield Hostile(kind, (text,), alone=True, bare=True)
    kind = "lengths"
    plain = [("Content-Type", "application/json")]
    for lies in (
        [("Content-Length", "5"), ("Content-Length", "6")],
        [("Content-Length", "-1")],
        [("Content-Length", "+5")],
        [("Content-Length", "0x10")],
        [("Content-Length", "5, 6")],
        [("Content-Length", "1e3")],
        [("Content-Length", "9" * 30)],
        [("Content-Length", "5"), ("Transfer-Encoding", "chunked")],
        [("Transfer-Encoding", "chunked, identity")],
        [("Transfer-Encoding", "xchunked")],
        [("Transfer-Encoding", "gzip")],
        [("Content-Length", "")],
    ):
        pieces = (head("POST", COMPLETION, [*plain, *lies]) + body,)
        yield Hostile(kind, pieces, statuses=frozenset({*range(400, 500), 501}), alone=True, bare=True)
    # What follows the first is no HTTP: it may close the connection before the first has its answer.
    short = head("POST", COMPLETION, [("Content-Length", str(len(body) - 4))]) + body
    yield Hostile(kind, (short,), alone=True, bare=True, silent=True)
    more = (head("POST", COMPLETION, [("Content-Length", str(len(body) + 50))]) + body,)
    yield Hostile(kind, more, alone=True, ends=True, silent=True, bare=True)
    kind = "header bombs"
    for headers in (
        [("X-Big", "x" * 70_000)],
        [("X" * 70_000, "y")],
        [(f"X-{i}", "y") for i in range(10_000)],
        [("Cookie", "a=b; " * 20_000)],
    ):
        yield Hostile(kind, (head("GET", "/v1/models", headers),), "GET", alone=True, bare=True)
    yield Hostile(kind, (head("GET", "/" + "x" * 70_000),), "GET", alone=True, bare=True)
    yield Hostile(kind, (head("GET", "/v1/models/" + "x" * 7000),), "GET", alone=True)
    kind = "paths without a key"
    for path in (*PROTECTED, *ADMIN):
        for method in ("GET", "POST", "HEAD"):
            yield Hostile(kind, (head(method, path, key=None),), method, statuses=NO_KEY, alone=True)
    for host in ("localhost/live#", "x/health?", "live", "127.0.0.1:1/live", "\xff", "a" * 5000):
        text = b"GET /v1/models HTTP/1.1\r\nHost: " + host.encode("latin-1") + b"\r\n\r\n"
        yield Hostile(kind, (text,), "GET", statuses=NO_KEY, alone=True, bare=True)
    for host in ("localhost", "live", "x:1", "user:password@x", "[::1]"):
        text = b"GET http://" + host.encode() + b"/v1/models HTTP/1.1\r\nHost: /live\r\n\r\n"
        yield Hostile(kind, (text,), "GET", statuses=NO_KEY, alone=True, bare=True)
    yield from _encodings(body)


def _encodings(body: bytes) -> Iterator[Hostile]:
    """Bodies in an encoding that nobody decodes, or of another kind."""
    kind = "encodings"
    form = b"prompt=Hi&max_tokens=2"
    parts = b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nHi\r\n--x--\r\n'
    for content, headers in (
        (b"\x1f\x8b\x08\x00" + b"\x00" * 40, [("Content-Encoding", "gzip")]), (form, [("Content-Type",
        "application/x-www-form-urlencoded")]),
        (parts, [("Content-Type", "multipart/form-data; boundary=x")]), (b"<prompt>Hi</prompt>", [("Content-Type",
        "text/xml")]),
        (b"prompt: Hi", [("Content-Type", "application/yaml")]), (b"", []), (b"\x00", []), (b"\xef\xbb\xbf" * 2 + body, []),
        (body.decode().encode("utf-16"), [("Content-Type", "application/json; charset=utf-16")]), (b"\xff" * 100, []),
        (b"\x81\xa6prompt\xa2Hi", [("Content-Type", "application/msgpack")]), (b"\x80\x04cos\nsystem\n(S'id'\ntR.", []),
    ):  # fmt: skip
        for path in (CHAT, COMPLETION, EMBEDDINGS, TOKENIZE, DETOKENIZE):
            yield Hostile(kind, posted(path, content, headers))


def innocent() -> Iterator[tuple[str, bytes, list[tuple[str, str]]]]:
    """Path, body and headers of what looks hostile and is valid: answered 200, and nothing in it comes alive."""
    text = "{{ 7*7 }}{% for x in range(9) %}x{% endfor %}"
    yield CHAT, encoded({**VALID[CHAT], "messages": [{"role": "user", "content": text}]}), []
    yield (
        CHAT,
        encoded(
            {**VALID[CHAT], "messages": [{**USER, "name": "a{{b}}"}], "chat_template_kwargs": {"a": text}}
        ),
        [],
    )
    yield (
        MESSAGES,
        encoded(
            {**VALID[MESSAGES], "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]}
        ),
        [],
    )
    yield COMPLETION, encoded({**VALID[COMPLETION], "prompt": "a\x00b\x1b[2J\u202e\ufeff"}), []
    yield COMPLETION, encoded(VALID[COMPLETION])[:-1] + b', "prompt": "again"}', []
    yield (
        COMPLETION,
        encoded({**VALID[COMPLETION], "metadata": {"a": [[[{}]]]}, "user": "\r\nSet-Cookie: x"}),
        [],
    )
    yield (
        COMPLETION,
        encoded(VALID[COMPLETION]),
        [("X-Request-Id", "req_mine"), ("Origin", "http://evil.test"), ("Host", "evil")],
    )
    yield (
        TOKENIZE,
        encoded({"prompt": "<|im_start|>system\n" * 5}),
        [("Content-Type", "application/json; charset=utf-8")],
    )
    yield COMPLETION, encoded({**VALID[COMPLETION], "cache_salt": "'; DROP TABLE x; --", "seed": 2**63}), []
