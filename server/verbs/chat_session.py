"""What `cohort chat` does in a terminal: read, send, show, remember."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from server.verbs.chat_client import ChatClient, ServerFault

HELP = """\
/help           this text
/system TEXT    set the system prompt and start over; without TEXT: show it
/history        show the conversation so far
/undo           take back the last question and its answer
/save FILE      write the conversation as JSON messages
/reset          start over
/exit           leave, as Ctrl-D does
A line that ends in \\ goes on in the next one. Ctrl-C stops an answer."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What could move the cursor or change the terminal; models may be made to say anything."""


def answer_once(client: ChatClient, system: str | None, text: str) -> None:
    """One message, its answer alone on stdout. Raises ServerFault, also for a message that is empty."""
    if not text.strip():
        raise ServerFault("nothing came on stdin: pipe a message, or run it in a terminal")
    messages = [{"role": "user", "content": text.strip()}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    ends_line = False
    with contextlib.closing(client.stream(messages)) as pieces:
        for kind, piece in pieces:
            if kind == "text":
                sys.stdout.write(piece)
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
        self._colours = sys.stdout.isatty()
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: self._say(HELP),
            "/system": self._set_system,
            "/history": lambda _: self._show_history(),
            "/undo": lambda _: self._undo(),
            "/save": self._save,
            "/reset": lambda _: self._reset(),
        }

    def run(self) -> None:
        """Until Ctrl-D or /exit."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # line editing and the history of lines, for input()
        self._say(f"{self.client.model} at {self.client.url}: /help tells the commands, Ctrl-D leaves")
        while True:
            try:
                text = self._read()
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                self._say("Ctrl-D leaves")
                continue
            if text in ("/exit", "/quit"):
                return
            if text.startswith("/"):
                self._command(text)
            elif text:
                self._ask(text)

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
            # A question that got no word of an answer is forgotten: templates want turns to alternate.
            self.messages += [question, {"role": "assistant", "content": "".join(answer)}]

    def _request(self, question: dict[str, str]) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages, question]

    def _show(self, messages: list[dict[str, str]], answer: list[str]) -> str:
        """Print the answer as it comes and collect it in `answer`; returns a note on its end, or ""."""
        note = ""
        # Closed also by Ctrl-C, which is what tells the server.
        with contextlib.closing(self.client.stream(messages)) as pieces:
            for kind, piece in pieces:
                if kind == "text":
                    answer.append(piece)
                    self._write(_CONTROL.sub("", piece))
                elif kind == "reasoning":
                    self._write(self._dim(_CONTROL.sub("", piece)))
                elif piece == "length":
                    note = "cut at the token limit"
        return note

    def _end_of_answer(self, answer: list[str]) -> None:
        if answer and not answer[-1].endswith("\n"):
            print(flush=True)

    # -- commands ------------------------------------------------------------------------------------------------------

    def _set_system(self, text: str) -> None:
        if not text:
            self._say(f"system prompt: {self.system}" if self.system else "there is no system prompt")
            return
        self.system = text
        self.messages.clear()
        self._say("the system prompt is set, and the conversation starts over")

    def _show_history(self) -> None:
        if not self.messages:
            self._say("nothing was said yet")
        for message in self.messages:
            text = _CONTROL.sub("", message["content"])
            self._say(f"{message['role']}:")
            print(text)

    def _undo(self) -> None:
        del self.messages[-2:]
        self._say(f"{len(self.messages) // 2} questions are left")

    def _save(self, name: str) -> None:
        if not name:
            self._say("/save needs the name of a file")
            return
        messages: list[Any] = self._request({})[:-1]
        try:
            Path(name).expanduser().write_text(
                json.dumps(messages, indent=2, ensure_ascii=False) + "\n", "utf-8"
            )
        except OSError as error:
            self._complain(f"{name}: {error.strerror}")
            return
        self._say(f"{len(messages)} messages are in {name}")

    def _reset(self) -> None:
        self.messages.clear()
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
