"""`cohort chat` against a server that says what a test wants it to say. The real one is in tests/e2e/test_verbs.py."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from clients.chat import answer, session
from clients.chat.client import ChatClient, ServerFault
from clients.chat.session import Session

MODELS = json.dumps({"object": "list", "data": [{"id": "first"}, {"id": "second"}]})


class Scripted(ThreadingHTTPServer):
    """Answers chats with `events` (written as they are) and notes what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.events: list[str] = []
        self.status = 200
        self.models = MODELS
        self.models_missing = 0
        """Bytes that are announced and never sent."""
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Scripted

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self._answer(self.server.models, self.server.models_missing)

    def do_POST(self) -> None:
        assert self.path == "/v1/chat/completions"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(json.loads(body))
        self.server.headers.append(dict(self.headers))
        self._answer("".join(self.server.events))

    def _answer(self, text: str, missing: int = 0) -> None:
        self.send_response(self.server.status)
        if missing:
            self.send_header("Content-Length", str(len(text.encode()) + missing))
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
        (["data: []\n\n"], "an event that no OpenAI-compatible API has"),
        (["data: 5\n\n"], "an event that no OpenAI-compatible API has"),
        (['data: {"choices": [{"delta": "x"}]}\n\n'], "an event that no OpenAI-compatible API has"),
        (['data: {"choices": {"a": 1}}\n\n'], "an event that no OpenAI-compatible API has"),
        (['data: {"choices": [7]}\n\n'], "an event that no OpenAI-compatible API has"),
        ([event(content=["x"])], "an event that no OpenAI-compatible API has"),
        (['data: {"error": {"message": "a\\u001b[2Jb"}}\n\n'], r"^a\[2Jb$"),
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


def test_a_list_of_models_that_breaks_off(scripted: Scripted) -> None:
    scripted.models_missing = 9
    with pytest.raises(ServerFault, match=r"IncompleteRead"):
        ChatClient(scripted.url, None, None, {}).choose_model()


def test_events_that_say_nothing_are_no_faults(scripted: Scripted) -> None:
    scripted.events = ['data: {"error": null, "choices": null}\n\n', 'data: {"choices": [{"delta": null}]}\n\n',
                       event(content="A"), finish()]  # fmt: skip
    assert list(client_of(scripted).stream([])) == [("text", "A"), ("finish", "stop")]


@pytest.mark.parametrize("key", ["ключ", "a\nb", "a\r", "\x00", "kéy"])
def test_keys_that_no_header_can_carry(key: str) -> None:
    with pytest.raises(ServerFault, match=r"^the key \(--api-key or COHORT_API_KEY\): it should be") as fault:
        ChatClient("http://h", key, None, {})
    assert key not in str(fault.value)


@pytest.mark.parametrize("url", ["http://user:secret@host", "user@host:80", "https://:secret@host/v1"])
def test_credentials_in_the_address_are_refused(url: str) -> None:
    with pytest.raises(ServerFault, match="name and password in the address are not sent") as fault:
        ChatClient(url, None, None, {})
    assert "secret" not in str(fault.value)


def test_a_path_of_any_characters(scripted: Scripted) -> None:
    """It reaches the server, which knows no such path of its own."""
    client = ChatClient(f"{scripted.url}/é x/v1", None, None, {})
    assert client.choose_model() == "first"
    assert scripted.paths == ["/%C3%A9%20x/v1/models"]


@pytest.mark.parametrize(
    "url",
    ["ftp://x", "http://", "http://h:99999999", "", "http://a..b", "http://[::1", f"http://{'a' * 64}", "http://a b",
     "http://a\x7fb", "http://\udc80"],
)  # fmt: skip
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

    def stream(messages: Any, *, count_tokens: bool) -> Iterator[tuple[str, str]]:
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
    session.answer_once(client_of(scripted), "Be brief.", " Hi \n")
    done = capsys.readouterr()
    assert done.out == "A\x1b[1m\n", "as it came: it does not go to a terminal"
    assert done.err == "cohort: the answer was cut at its token limit\n"
    assert [message["content"] for message in scripted.asked[0]["messages"]] == ["Be brief.", "Hi"]


def test_a_reader_that_has_enough(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    scripted.events = [event(content="A"), finish()]
    monkeypatch.setattr("sys.stdout", Gone())
    with pytest.raises(BrokenPipeError):
        session.answer_once(client_of(scripted), None, "Hi")


class Screen(io.StringIO):
    """A terminal, for whoever asks."""

    def isatty(self) -> bool:
        return True


def test_one_answer_in_a_terminal_does_not_steer_it(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.events = [event(content="A\x1b[2J\x9bB\n"), finish()]
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    session.answer_once(client_of(scripted), None, "Hi")
    assert screen.getvalue() == "A[2JB\n"


def test_a_line_with_two_slashes_is_sent_with_one(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.events = [event(content="A"), finish()]
    typed(monkeypatch, Session(client_of(scripted), None), "//undo is what?", "//")
    assert [asked["messages"][-1]["content"] for asked in scripted.asked] == ["/undo is what?", "/"]


def test_retry_asks_again(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(client_of(scripted), None)
    typed(monkeypatch, session, "/retry")
    assert "nothing was said yet\n" in capsys.readouterr().out and scripted.asked == []
    scripted.events = [event(content="One"), finish()]
    typed(monkeypatch, session, "Hi")
    scripted.events = [event(content="Two"), finish()]
    typed(monkeypatch, session, "/retry")
    assert [asked["messages"] for asked in scripted.asked] == [[{"role": "user", "content": "Hi"}]] * 2
    assert [message["content"] for message in session.messages] == ["Hi", "Two"]


def test_retry_loses_nothing(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer stays until there is another; a question that got none is asked again, and /undo gives it up."""
    session = Session(client_of(scripted), None)
    scripted.events = [event(content="One"), finish()]
    typed(monkeypatch, session, "Hi")
    scripted.status, scripted.events = 503, []
    typed(monkeypatch, session, "/retry")
    assert [message["content"] for message in session.messages] == ["Hi", "One"]
    typed(monkeypatch, session, "More")
    scripted.status, scripted.events = 200, [event(content="Two"), finish()]
    typed(monkeypatch, session, "/retry")
    assert [message["content"] for message in session.messages] == ["Hi", "One", "More", "Two"]


def test_undo_counts(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.events = [event(content="A"), finish()]
    typed(monkeypatch, Session(client_of(scripted), None), "/undo", "a", "b", "c", *["/undo"] * 4)
    lines = capsys.readouterr().out.splitlines()
    told = [line for line in lines if "left" in line or line.startswith("nothing")]
    said = "nothing was said yet"
    assert told == [said, "2 questions left", "1 question left", "0 questions left", said]


@pytest.mark.parametrize("name", ["~nosuchuser/x", "a\x00b", "/nowhere/x", "/"])
def test_a_file_that_cannot_be_written(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    scripted.events = [event(content="A"), finish()]
    session = Session(client_of(scripted), None)
    typed(monkeypatch, session, "Hi", f"/save {name}", "More")
    assert f"{name}: " in capsys.readouterr().out
    assert len(session.messages) == 4


def test_half_a_surrogate_pair_can_be_saved(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scripted.events = [event(content="é\ud800"), finish()]
    session = Session(client_of(scripted), None)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    typed(monkeypatch, session, "Hi", f"/save {tmp_path / 'talk'}")
    assert json.loads((tmp_path / "talk").read_bytes()) == session.messages


def test_ctrl_c_in_a_command_loses_nothing(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted.events = [event(content="A"), finish()]
    session = Session(client_of(scripted), None)

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    session._commands["/history"] = interrupted
    typed(monkeypatch, session, "Hi", "/history", "More")
    assert len(session.messages) == 4


def test_the_speed_is_shown_in_a_terminal(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = 'data: {"choices": [], "usage": {"completion_tokens": 31}}\n\n'
    scripted.events = [event(content="A"), event(content="B"), finish("length").split("data: [DONE]")[0], usage,
                       "data: [DONE]\n\n"]  # fmt: skip
    screen, clock = Screen(), iter(range(100))
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr(answer.time, "monotonic", lambda: next(clock))
    typed(monkeypatch, Session(client_of(scripted), None), "Hi")
    assert scripted.asked[0]["stream_options"] == {"include_usage": True}
    # Two pieces, the number of tokens and the end: three seconds for the thirty tokens after the first.
    assert (
        "AB\n\x1b[2m[cut at the token limit; 31 tokens, 10.0/s, first after 1.0 s]\x1b[0m\n"
        in screen.getvalue()
    )


def test_an_answer_without_text_is_told(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(client_of(scripted), None)
    for events in ([finish("stop")], [event(tool_calls=[{"index": 0}]), finish("tool_calls")]):
        scripted.events = [*events, "data: [DONE]\n\n"]
        typed(monkeypatch, session, "Say nothing.")
        assert "[the answer has no text]" in capsys.readouterr().out
    scripted.events = [event(content="Yes."), finish("stop"), "data: [DONE]\n\n"]
    typed(monkeypatch, session, "Say something.")
    assert "no text" not in capsys.readouterr().out


def test_a_stopped_answer_has_its_figures(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a server that counts tokens in each chunk; another one's are counted by its pieces."""
    screen, clock = Screen(), iter(range(100))
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr(answer.time, "monotonic", lambda: next(clock))
    session, counted = Session(client_of(scripted), None), True

    def stream(messages: Any, *, count_tokens: bool) -> Iterator[tuple[str, str]]:
        yield "text", "One, "
        if counted:
            yield "tokens", "5"
        yield "text", "two"
        raise KeyboardInterrupt

    monkeypatch.setattr(session.client, "stream", stream)
    typed(monkeypatch, session, "Count.")
    counted = False
    typed(monkeypatch, session, "Count.")
    assert "[stopped; 5 tokens, 2.0/s, first after 1.0 s]" in screen.getvalue()
    assert "[stopped; about 2 tokens, 1.0/s, first after 1.0 s]" in screen.getvalue()


@pytest.mark.parametrize(("owner", "counted"), [("cohort", True), ("vllm", True), ("openai", False)])
def test_only_servers_that_know_it_are_asked_for_a_count_in_each_chunk(
    scripted: Scripted, owner: str, counted: bool
) -> None:
    scripted.models = json.dumps({"data": [{"id": "first", "owned_by": owner}]})
    scripted.events = [event(content="A"), finish()]
    list(client_of(scripted).stream([], count_tokens=True))
    assert ("continuous_usage_stats" in scripted.asked[0]["stream_options"]) == counted


def test_set_reaches_the_requests(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = {
        "id": "first",
        "owned_by": "cohort",
        "max_model_len": 512,
        "generates": True,
        "sampling_defaults": {},
    }
    scripted.models = json.dumps({"data": [card]})
    scripted.events = [event(content="A"), finish()]
    lines = ["a", "/set temperature 0.5", "/set parameter min_p 0", "/set system Be brief.", "/set nothink", "b",
             "/set temperature", "/set parameter", "/set warmth 1", "/show", "/set system", "c"]  # fmt: skip
    typed(monkeypatch, Session(client_of(scripted, seed=7), None), *lines)
    first, second, third = scripted.asked
    assert (first["min_p"], first["seed"], "temperature" in first) == (0.1, 7, False)
    assert (second["min_p"], second["temperature"]) == (0, 0.5) and "temperature" not in third
    assert second["messages"][0] == {"role": "system", "content": "Be brief."}
    assert second["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
    shown = capsys.readouterr().out
    assert "temperature 0.5 set here\n" in shown and "system prompt: Be brief.\n" in shown
    assert "there is no parameter 'warmth'" in shown and "512 tokens of context\n" in shown
    assert len(Session(client_of(scripted), None).messages) == 0


def test_a_model_that_was_loading_is_asked_for_its_defaults_again(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = {"id": "first", "max_model_len": None, "sampling_defaults": None}
    scripted.models = json.dumps({"data": [card]})
    scripted.events = [event(content="A"), finish()]
    session = Session(client_of(scripted), None)
    scripted.models = json.dumps({"data": [{**card, "max_model_len": 512, "sampling_defaults": {}}]})
    typed(monkeypatch, session, "a")
    assert scripted.asked[0]["min_p"] == 0.1


def test_text_between_quotes_has_any_number_of_lines(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.events = [event(content="A"), finish()]
    session = Session(client_of(scripted), None)
    typed(
        monkeypatch,
        session,
        '"""one',
        "",
        '  two"""',
        '/system """Be',
        'brief."""',
        '"""three"""',
        'say """ please',
    )
    asked = [one["messages"][-1]["content"] for one in scripted.asked]
    assert asked == ["one\n\n  two", "three", 'say """ please']
    assert scripted.asked[1]["messages"][0]["content"] == "Be\nbrief."


def test_words_of_ollama(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.events = [event(content="A"), finish()]
    session = Session(client_of(scripted), None)
    typed(
        monkeypatch,
        session,
        "Hi",
        "/clear",
        "/?",
        "/image x.png",
        "/load other",
        "/show modelfile",
        "/set quiet",
        "/bye",
        "never",
    )
    shown = capsys.readouterr().out
    assert session.messages == [] and len(scripted.asked) == 1
    for words in ("the conversation starts over", "/set NAME VALUE", "/image is not there yet", "cohort chat MODEL",
                  "/show shows info, parameters or system", "no line below each answer"):  # fmt: skip
        assert words in shown, words


def test_reasoning_stands_on_lines_of_its_own(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.events = [
        event(reasoning_content="hm, "),
        event(reasoning_content="so"),
        event(content="A"),
        finish(),
    ]
    session = Session(client_of(scripted), None)
    typed(monkeypatch, session, "Hi")
    assert "hm, so\nA\n" in capsys.readouterr().out
    assert session.messages[1]["content"] == "A"
