"""`cohort chat` against a server that says what a test wants it to say. The real one is in tests/e2e/test_verbs.py."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from server.verbs import chat_session
from server.verbs.chat_client import ChatClient, ServerFault
from server.verbs.chat_session import Session

MODELS = json.dumps({"object": "list", "data": [{"id": "first"}, {"id": "second"}]})


class Scripted(ThreadingHTTPServer):
    """Answers chats with `events` (written as they are) and notes what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.events: list[str] = []
        self.status = 200
        self.models = MODELS
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Scripted

    def do_GET(self) -> None:
        self._answer(self.server.models)

    def do_POST(self) -> None:
        assert self.path == "/v1/chat/completions"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(json.loads(body))
        self.server.headers.append(dict(self.headers))
        self._answer("".join(self.server.events))

    def _answer(self, text: str) -> None:
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    server = Scripted()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def event(**delta: Any) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n"


def finish(reason: str = "stop") -> str:
    return f"data: {json.dumps({'choices': [{'delta': {}, 'finish_reason': reason}]})}\n\ndata: [DONE]\n\n"


def client_of(scripted: Scripted, **options: Any) -> ChatClient:
    client = ChatClient(scripted.url, "key", None, options)
    assert client.choose_model() == "first"
    return client


def typed(monkeypatch: pytest.MonkeyPatch, session: Session, *lines: str) -> None:
    """Run the session as if these lines were typed, and then Ctrl-D."""
    waiting = iter(lines)

    def read(prompt: str) -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    session.run()


def test_a_stream_in_pieces(scripted: Scripted) -> None:
    scripted.events = [": comment\n\n", event(role="assistant", content=""), event(reasoning_content="hm"),
                       event(content="Hé"), event(content="llo"), finish("length")]  # fmt: skip
    client = client_of(scripted, temperature=0.5, seed=7)
    pieces = list(client.stream([{"role": "user", "content": "Hi"}]))
    assert pieces == [("reasoning", "hm"), ("text", "Hé"), ("text", "llo"), ("finish", "length")]
    (asked,) = scripted.asked
    assert asked == {
        "model": "first", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "temperature": 0.5, "seed": 7,
    }  # fmt: skip
    assert scripted.headers[0]["Authorization"] == "Bearer key"


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([event(content="half")], "closed the connection before the answer was complete"),
        ([event(content="x"), 'data: {"error": {"message": "the executor\\nis gone"}}\n\n'], "the executor is gone"),
        (["data: {\n\n"], "an event that is no JSON"),
    ],
)  # fmt: skip
def test_a_stream_that_breaks(scripted: Scripted, events: list[str], words: str) -> None:
    scripted.events = events
    with pytest.raises(ServerFault, match=words):
        list(client_of(scripted).stream([{"role": "user", "content": "Hi"}]))


@pytest.mark.parametrize("models", ["<html>", "[]", '{"data": 3}'])
def test_something_else_listens_there(scripted: Scripted, models: str) -> None:
    scripted.models = models
    with pytest.raises(ServerFault, match="no server with an OpenAI-compatible API"):
        ChatClient(scripted.url, None, None, {}).choose_model()


def test_a_server_without_a_model(scripted: Scripted) -> None:
    scripted.models = '{"data": []}'
    with pytest.raises(ServerFault, match="serves no model"):
        ChatClient(scripted.url, None, None, {}).choose_model()


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://h:99999999", ""])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ServerFault, match="it should be an address"):
        ChatClient(url, None, None, {})


def test_a_refusal_is_one_line_and_not_remembered(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(client_of(scripted), "Be kind.")
    scripted.status, scripted.events = 503, ['{"error": {"message": "Loading\\nthe model."}}']
    typed(monkeypatch, session, "Hi")
    assert "the server says 503: Loading the model.\n" in capsys.readouterr().out
    assert session.messages == []
    scripted.status, scripted.events = 200, [event(content="Yes"), finish()]
    typed(monkeypatch, session, "Hi", "More", "/undo", "Again")
    roles = [message["role"] for message in scripted.asked[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert [message["content"] for message in session.messages] == ["Hi", "Yes", "Again", "Yes"]


def test_ctrl_c_keeps_what_was_said(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(client_of(scripted), None)
    closed: list[bool] = []

    def stream(messages: Any) -> Iterator[tuple[str, str]]:
        try:
            yield "text", "One, two"
            raise KeyboardInterrupt
        finally:
            closed.append(True)

    monkeypatch.setattr(session.client, "stream", stream)
    typed(monkeypatch, session, "Count.")
    assert "One, two\n[stopped]\n" in capsys.readouterr().out
    assert session.messages[1] == {"role": "assistant", "content": "One, two"} and closed == [True]


def test_a_model_does_not_steer_the_terminal(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "a\x1b[2Jb\x9b1mc\x07\td\r\ne"
    scripted.events = [event(content=said), finish()]
    session = Session(client_of(scripted), None)
    typed(monkeypatch, session, "Hi", "/history")
    shown = capsys.readouterr().out
    assert shown.count("a[2Jb1mc\td\ne") == 2 and "\x1b" not in shown
    assert session.messages[1]["content"] == said


def test_piped_output_is_the_answer_alone(
    scripted: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.events = [event(reasoning_content="hm"), event(content="A\x1b[1m"), finish("length")]
    chat_session.answer_once(client_of(scripted), "Be brief.", " Hi \n")
    done = capsys.readouterr()
    assert done.out == "A\x1b[1m\n", "as it came: where it goes is not known to be a terminal"
    assert done.err == "cohort: the answer was cut at its token limit\n"
    assert [message["content"] for message in scripted.asked[0]["messages"]] == ["Be brief.", "Hi"]


def test_a_reader_that_has_enough(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    scripted.events = [event(content="A"), finish()]
    monkeypatch.setattr("sys.stdout", Gone())
    with pytest.raises(BrokenPipeError):
        chat_session.answer_once(client_of(scripted), None, "Hi")
