"""`cohort chat` in a terminal, with answers that come word by word: keys typed meanwhile, and lines that break at words."""

from __future__ import annotations

import fcntl
import json
import re
import signal
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.terminal import Terminal

pytestmark = pytest.mark.long

COHORT = str(Path(sys.executable).with_name("cohort"))
WORDS = 40


class Slow(ThreadingHTTPServer):
    """Answers with `WORDS` numbered words; the second half waits until a test sets `released`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Slow

    def do_GET(self) -> None:
        self._send({"data": [{"id": "slow", "owned_by": "cohort", "max_model_len": 512}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body["messages"][-1]["content"])
        self.send_response(200)
        self.end_headers()
        for number in range(1, WORDS + 1):
            if number == WORDS // 2:
                self.server.released.wait(30)
            delta = {
                "choices": [{"delta": {"content": f"word{number} "}}],
                "usage": {"completion_tokens": number},
            }
            self._event(json.dumps(delta))
        self._event("[DONE]")

    def _event(self, text: str) -> None:
        self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.flush()

    def _send(self, body: Any) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Slow]:
    slow = Slow()
    thread = threading.Thread(target=slow.serve_forever, args=(0.01,))
    thread.start()
    yield slow
    slow.released.set()
    slow.shutdown()
    thread.join()
    slow.server_close()


def resize(terminal: Terminal, columns: int) -> None:
    fcntl.ioctl(terminal.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


def test_keys_typed_during_an_answer_wait_for_the_prompt(server: Slow, tmp_path: Path) -> None:
    with Terminal([COHORT, "chat", server.url], tmp_path) as terminal:
        terminal.expect(">>> ")
        terminal.type("first\n")
        terminal.expect(f"word{WORDS // 2 - 2}")
        terminal.type("typed ahead\x7f\x7f")
        server.released.set()
        answer = terminal.expect(">>> ")
        assert "typed" not in answer and f"word{WORDS} \n" in answer
        assert re.search(rf"\[{WORDS} tokens(, [\d.]+/s)?, first after \d+\.\d s\]\n", answer), answer
        terminal.expect("typed ahe")
        terminal.type("\n")
        terminal.expect(">>> ")
        terminal.type("\x04")
        assert terminal.wait() == 0
    assert server.asked == ["first", "typed ahe"]


def test_ctrl_c_stops_and_keeps_what_was_typed(server: Slow, tmp_path: Path) -> None:
    with Terminal([COHORT, "chat", server.url], tmp_path) as terminal:
        terminal.expect(">>> ")
        terminal.type("first\n")
        terminal.expect(f"word{WORDS // 2 - 2}")
        terminal.type("a whole line\nhalf")
        terminal.type("\x03")
        stopped = terminal.expect(">>> ")
        assert re.search(r"\[stopped; 1\d tokens, ", stopped), stopped
        terminal.expect("a whole line\n")
        server.released.set()
        terminal.expect(">>> ")
        terminal.expect("half")
        terminal.type("\x15/bye\n")
        assert terminal.wait() == 0
        # Terminals that programs leave without echo show nothing of what is typed next.
        assert (
            termios.tcgetattr(terminal.fd)[3] & (termios.ECHO | termios.ICANON)
            == termios.ECHO | termios.ICANON
        )
    assert server.asked == ["first", "a whole line"]


def test_lines_break_at_words_at_the_width_of_the_moment(server: Slow, tmp_path: Path) -> None:
    with Terminal([COHORT, "chat", server.url], tmp_path) as terminal:
        resize(terminal, 40)
        terminal.expect(">>> ")
        terminal.type("first\n")
        wide = terminal.expect(f"word{WORDS // 2 - 2}")
        resize(terminal, 15)
        server.released.set()
        narrow = terminal.expect("[")
        terminal.type("/bye\n")
        terminal.wait()
    answer = wide.partition("first\n")[2] + f"word{WORDS // 2 - 2}" + narrow
    assert answer.split() == [f"word{number}" for number in range(1, WORDS + 1)]
    lines = answer.splitlines()
    at = next(index for index, line in enumerate(lines) if f"word{WORDS // 2 - 1}" in line)
    assert max(map(len, lines[:at])) in range(30, 41) and max(map(len, lines[at + 1 :])) <= 15


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_ends_the_conversation_leaves_the_terminal_as_it_was(
    server: Slow, tmp_path: Path, number: signal.Signals
) -> None:
    with Terminal([COHORT, "chat", server.url], tmp_path) as terminal:
        before = termios.tcgetattr(terminal.fd)[:4]
        terminal.expect(">>> ")
        terminal.type("first\n")
        terminal.expect(f"word{WORDS // 2 - 2}")
        assert termios.tcgetattr(terminal.fd)[:4] != before
        terminal.process.send_signal(number)
        assert terminal.wait() == (0 if number == signal.SIGTERM else -number)
        assert termios.tcgetattr(terminal.fd)[:4] == before


def test_a_signal_at_the_prompt_leaves_the_terminal_as_it_was(server: Slow, tmp_path: Path) -> None:
    with Terminal([COHORT, "chat", server.url], tmp_path) as terminal:
        before = termios.tcgetattr(terminal.fd)[:4]
        terminal.expect(">>> ")
        terminal.process.terminate()
        assert terminal.wait() == 0
        assert termios.tcgetattr(terminal.fd)[:4] == before
