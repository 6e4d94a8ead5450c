"""What `cohort chat` does in a terminal: read, send, show, remember."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from server.commands.address import CONTROL
from server.commands.chat.client import ChatClient, ServerFault

HELP = """\
/help           this text
/system TEXT    set the system prompt and start over; without TEXT: show it
/history        show the conversation so far
/retry          ask the last question again
/undo           take back the last question and its answer
/save FILE      write the conversation as JSON messages
/reset          start over
/exit           leave, as Ctrl-D does
A line that begins with // is sent with one / less; one that ends in \\ goes on in the next one. Ctrl-C stops an answer."""


def answer_once(client: ChatClient, system: str | None, text: str) -> None:
    """One message, its answer alone on stdout: as it came, but in a terminal without what would steer that. Raises
    ServerFault, also for a message that is empty, and OSError for a stdout that takes no more."""
    if not text.strip():
        raise ServerFault("nothing came on stdin: pipe a message, or run it in a terminal")
    messages = [{"role": "user", "content": text.strip()}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    ends_line, steers = False, sys.stdout.isatty()
    with contextlib.closing(client.stream(messages)) as pieces:
        for kind, piece in pieces:
            if kind == "text":
                sys.stdout.write(CONTROL.sub("", piece) if steers else piece)
                sys.stdout.flush()
                ends_line = piece.endswith("\n")
            elif kind == "finish" and piece == "length":
                print("cohort: the answer was cut at its token limit", file=sys.stderr)
    if not ends_line:
        print(flush=True)


class Session:
    """One conversation. Owns `messages`: only complete turns are in it, and answers that were stopped as far as they got."""

    def __init__(self, client: ChatClient, system: str | None) -> None:
        self.client = client
        self.system = system
        self.messages: list[dict[str, str]] = []
        self._unanswered = ""
        """The last question, where it got no word of an answer: for /retry."""
        self._colours = sys.stdout.isatty()
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: self._say(HELP),
            "/system": self._set_system,
            "/history": lambda _: self._show_history(),
            "/retry": lambda _: self._retry(),
            "/undo": lambda _: self._undo(),
            "/save": self._save,
            "/reset": lambda _: self._reset(),
        }

    def run(self) -> None:
        """Until Ctrl-D or /exit."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # line editing and the history of lines, for input()
        self._say(
            f"{CONTROL.sub('', self.client.model or '')} at {self.client.url}: /help tells the commands, Ctrl-D leaves"
        )
        while True:
            try:
                text = self._read()
                if text in ("/exit", "/quit"):
                    return
                if text.startswith("/") and not text.startswith("//"):
                    self._command(text)
                elif text:
                    self._ask(text[1:] if text.startswith("//") else text)
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                self._say("Ctrl-D leaves")

    def _read(self) -> str:
        """A message; lines that end in a backslash go on. Raises EOFError and KeyboardInterrupt."""
        lines = [input(self._prompt(">>> "))]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(input(self._prompt("... ")))
        return "\n".join(lines).strip()

    def _prompt(self, text: str) -> str:
        # \x01 and \x02 tell readline what takes no room on the screen.
        return f"\x01\x1b[1;36m\x02{text}\x01\x1b[0m\x02" if self._colours else text

    def _command(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        command = self._commands.get(name)
        if command is None:
            self._say(f"there is no {name[:40]}: /help tells the commands")
        else:
            command(rest.strip())

    # -- a turn --------------------------------------------------------------------------------------------------------

    def _ask(self, text: str) -> None:
        question = {"role": "user", "content": text}
        answer: list[str] = []
        self._unanswered = text
        try:
            note = self._show(self._request(question), answer)
        except KeyboardInterrupt:
            note = "stopped"
        except ServerFault as error:
            self._end_of_answer(answer)
            self._complain(str(error))
            return
        except ConnectionRefusedError:
            self._complain(f"no server answers at {self.client.url} any more")
            return
        self._end_of_answer(answer)
        if note:
            self._say(f"[{note}]")
        if answer:
            # A question that got no word of an answer is not among the messages: templates want turns to alternate.
            self._unanswered = ""
            self.messages += [question, {"role": "assistant", "content": "".join(answer)}]

    def _request(self, question: dict[str, str]) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages, question]

    def _show(self, messages: list[dict[str, str]], answer: list[str]) -> str:
        """Print the answer as it comes and collect it in `answer`; returns a note on its end, or ""."""
        note, tokens = "", 0
        first: float | None = None
        # Closed also by Ctrl-C, which is what tells the server.
        with contextlib.closing(self.client.stream(messages, count_tokens=self._colours)) as pieces:
            for kind, piece in pieces:
                last = time.monotonic()
                first = last if first is None else first
                if kind == "text":
                    answer.append(piece)
                    self._write(CONTROL.sub("", piece))
                elif kind == "reasoning":
                    self._write(self._dim(CONTROL.sub("", piece)))
                elif kind == "tokens":
                    tokens = int(piece)
                elif piece == "length":
                    note = "cut at the token limit"
        return "; ".join(
            part for part in (note, _speed(tokens, last - first if first is not None else 0)) if part
        )

    def _end_of_answer(self, answer: list[str]) -> None:
        if answer and not answer[-1].endswith("\n"):
            print(flush=True)

    # -- commands ------------------------------------------------------------------------------------------------------

    def _set_system(self, text: str) -> None:
        if not text:
            self._say(f"system prompt: {self.system}" if self.system else "there is no system prompt")
            return
        self.system = text
        self._forget()
        self._say("the system prompt is set, and the conversation starts over")

    def _show_history(self) -> None:
        if not self.messages:
            self._say("nothing was said yet")
        for message in self.messages:
            text = CONTROL.sub("", message["content"])
            self._say(f"{message['role']}:")
            print(text)

    def _retry(self) -> None:
        """What was answered stays as it is until there is another answer."""
        if self._unanswered:
            self._ask(self._unanswered)
        elif self.messages:
            taken = self.messages[-2:]
            del self.messages[-2:]
            left = len(self.messages)
            try:
                self._ask(taken[0]["content"])
            finally:
                if len(self.messages) == left:
                    self.messages += taken
                    self._unanswered = ""
        else:
            self._say("nothing was said yet")

    def _undo(self) -> None:
        self._unanswered = ""
        if not self.messages:
            self._say("nothing was said yet")
            return
        del self.messages[-2:]
        left = len(self.messages) // 2
        self._say(f"{left} question{'' if left == 1 else 's'} left")

    def _save(self, name: str) -> None:
        if not name:
            self._say("/save needs the name of a file")
            return
        messages: list[Any] = self._request({})[:-1]
        try:
            # Halves of surrogate pairs become \\udXXX, which is how JSON writes them.
            text = json.dumps(messages, indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace")
            Path(name).expanduser().write_bytes(text + b"\n")
        except (OSError, ValueError, RuntimeError) as error:  # a NUL in the name; no such user's home
            self._complain(f"{name}: {getattr(error, 'strerror', None) or error}")
            return
        self._say(f"{len(messages)} {'message is' if len(messages) == 1 else 'messages are'} in {name}")

    def _forget(self) -> None:
        self.messages.clear()
        self._unanswered = ""

    def _reset(self) -> None:
        self._forget()
        self._say("the conversation starts over")

    # -- the screen ----------------------------------------------------------------------------------------------------

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._colours else text

    def _say(self, text: str) -> None:
        print(self._dim(text), flush=True)

    def _complain(self, text: str) -> None:
        print(f"\x1b[31m{text}\x1b[0m" if self._colours else text, flush=True)


def _speed(tokens: int, seconds: float) -> str:
    """The first token waits for the prompt: the rate is that of the others. Empty where nothing can be said."""
    if tokens < 2 or seconds <= 0:
        return ""
    return f"{(tokens - 1) / seconds:.1f} tokens per second"
