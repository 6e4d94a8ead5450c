"""What `cohort chat` does in a terminal: read, send, show, remember."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clients.chat.answer import Answer
from clients.chat.client import ChatClient, ServerFault
from clients.chat.keyboard import typed_ahead
from clients.chat.parameters import Parameters
from clients.chat.screen import AnswerWriter, Screen
from clients.chat.set_command import SetCommand
from server.commands.common import CONTROL

HELP = """\
/help, /?            this text
/set                 show the parameters in force, and where each comes from
/set NAME VALUE      set one, such as temperature or max_tokens; without VALUE: leave it to the server again
/set system TEXT     set the system prompt and start over, as /system TEXT does; without TEXT: show it
/set think|nothink   let the model reason before its answers, or not
/set wordwrap|nowordwrap, verbose|quiet    lines that break at words; the line below an answer
/show                show the model and its server; also /show parameters, /show system
/history             show the conversation so far
/retry               ask the last question again
/undo                take back the last question and its answer
/save FILE           write the conversation as JSON messages
/clear, /reset       start over
/bye, /exit          leave, as Ctrl-D does
A line that begins with // is sent with one / less. One that ends in \\ goes on in the next one, and text between \"\"\" and
\"\"\" may have any number of lines. Ctrl-C stops an answer. What is typed during an answer waits for the next prompt; lines that
end with Enter are sent then."""
_QUOTES = '"""'


def answer_once(client: ChatClient, system: str | None, text: str) -> None:
    """One message, its answer alone on stdout: as it came, but in a terminal without what would steer that, and in lines that
    break at words. Raises ServerFault, also for a message that is empty, and OSError for a stdout that takes no more."""
    if not text.strip():
        raise ServerFault("nothing came on stdin: pipe a message, or run it in a terminal")
    messages = [{"role": "user", "content": text.strip()}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    parameters = Parameters(client.options)
    parameters.take_card(client.card)
    client.options = parameters.options
    writer = AnswerWriter(Screen()) if sys.stdout.isatty() else None
    ends_line = False
    with contextlib.closing(client.stream(messages)) as pieces:
        for kind, piece in pieces:
            if kind == "finish" and piece == "length":
                print("cohort: the answer was cut at its token limit", file=sys.stderr)
            if kind != "text":
                continue
            if writer is not None:
                writer.write(kind, piece)
                continue
            sys.stdout.write(piece)
            sys.stdout.flush()
            ends_line = piece.endswith("\n")
    if writer is not None:
        writer.end()
    elif not ends_line:
        print(flush=True)


class Session:
    """One conversation. Owns `messages`: only complete turns are in it, and answers that were stopped as far as they got."""

    def __init__(self, client: ChatClient, system: str | None) -> None:
        self.client = client
        self.system = system
        self.screen = Screen()
        self.parameters = Parameters(client.options)
        self.parameters.take_card(client.card)
        self.messages: list[dict[str, str]] = []
        self._unanswered = ""
        """The last question, where it got no word of an answer: for /retry."""
        set_command = SetCommand(self.screen, client, self.parameters, self._set_system)
        self._set_command = set_command
        self._commands: dict[str, Callable[[str], None]] = {
            **dict.fromkeys(("/help", "/?"), lambda _: self.screen.say(HELP)),
            "/set": set_command.set,
            "/show": set_command.show,
            "/system": self._set_system,
            "/history": lambda _: self._show_history(),
            "/retry": lambda _: self._retry(),
            "/undo": lambda _: self._undo(),
            "/save": self._save,
            **dict.fromkeys(("/reset", "/clear"), lambda _: self._reset()),
            "/image": lambda _: self.screen.say("/image is not there yet: models here read text only"),
            "/load": lambda _: self.screen.say(
                "a conversation has one model: start another with cohort chat MODEL"
            ),
        }

    def run(self) -> None:
        """Until Ctrl-D, /exit or /bye."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # line editing and the history of lines, for input()
        self.screen.say(
            f"{CONTROL.sub('', self.client.model or '')} at {self.client.url}: /help tells the commands, Ctrl-D leaves"
        )
        while True:
            try:
                text = self._read()
                if text in ("/exit", "/quit", "/bye"):
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
                self.screen.say("Ctrl-D leaves")

    def _read(self) -> str:
        """A message; lines that end in a backslash go on, and so does a text that begins with three quotes, up to three others.
        Raises EOFError and KeyboardInterrupt."""
        lines = [input(self.screen.prompt(">>> "))]
        before, opening, rest = lines[0].partition(_QUOTES)
        command = before.strip()
        if opening and (not command or command in ("/system", "/set system")):
            lines = [rest]
            while _QUOTES not in lines[-1]:
                lines.append(input(self.screen.prompt("... ")))
            text = "\n".join(lines).partition(_QUOTES)[0].strip()
            return f"{command} {text}" if command else text
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(input(self.screen.prompt("... ")))
        return "\n".join(lines).strip()

    def _command(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        command = self._commands.get(name)
        if command is None:
            self.screen.say(f"there is no {name[:40]}: /help tells the commands")
        else:
            command(rest.strip())

    # -- a turn --------------------------------------------------------------------------------------------------------

    def _ask(self, text: str) -> None:
        with typed_ahead():
            self._turn(text)

    def _turn(self, text: str) -> None:
        question = {"role": "user", "content": text}
        self._unanswered = text
        self._renew_card()
        writer, answer = AnswerWriter(self.screen), Answer()
        self.client.options = {**self.parameters.options, **self._set_command.template_options}
        complaint = ""
        try:
            answer.receive(self.client, self._request(question), writer, counts=self.screen.colours)
        except KeyboardInterrupt:
            answer.note = "stopped"
        except ServerFault as error:
            complaint = str(error)
        except ConnectionRefusedError:
            complaint = f"no server answers at {self.client.url} any more"
        writer.end()
        if complaint:
            self.screen.complain(complaint)
            return
        if not answer.pieces and not answer.note:
            answer.note = "the answer has no text"
        figures = answer.closing() if self.screen.colours and self._set_command.verbose else ""
        if note := "; ".join(filter(None, (answer.note, figures))):
            self.screen.say(f"[{note}]")
        if answer.pieces:
            # A question that got no word of an answer is not among the messages: templates want turns to alternate.
            self._unanswered = ""
            self.messages += [question, {"role": "assistant", "content": answer.text}]

    def _renew_card(self) -> None:
        """Ask for the model's defaults again if the server was loading it when the conversation began."""
        card = self.client.card
        if "sampling_defaults" in card and card.get("max_model_len") is None:
            with contextlib.suppress(ServerFault, ConnectionRefusedError):
                self.client.choose_model()
                self.parameters.take_card(self.client.card)

    def _request(self, question: dict[str, str]) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages, question]

    # -- commands ------------------------------------------------------------------------------------------------------

    def _set_system(self, text: str) -> None:
        if not text:
            self.screen.say(f"system prompt: {self.system}" if self.system else "there is no system prompt")
            return
        self.system = text
        self._forget()
        self.screen.say("the system prompt is set, and the conversation starts over")

    def _show_history(self) -> None:
        if not self.messages:
            self.screen.say("nothing was said yet")
        for message in self.messages:
            self.screen.say(f"{message['role']}:")
            self.screen.show(message["content"])

    def _retry(self) -> None:
        """What was answered stays as it is until there is another answer."""
        if self._unanswered:
            self._ask(self._unanswered)
        elif self.messages:
            last = self.messages[-2:]
            del self.messages[-2:]
            count = len(self.messages)
            try:
                self._ask(last[0]["content"])
            finally:
                if len(self.messages) == count:
                    self.messages += last
                    self._unanswered = ""
        else:
            self.screen.say("nothing was said yet")

    def _undo(self) -> None:
        self._unanswered = ""
        if not self.messages:
            self.screen.say("nothing was said yet")
            return
        del self.messages[-2:]
        count = len(self.messages) // 2
        self.screen.say(f"{count} question{'' if count == 1 else 's'} left")

    def _save(self, name: str) -> None:
        if not name:
            self.screen.say("/save needs the name of a file")
            return
        messages: list[Any] = self._request({})[:-1]
        try:
            # Halves of surrogate pairs become \\udXXX, which is how JSON writes them.
            text = json.dumps(messages, indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace")
            Path(name).expanduser().write_bytes(text + b"\n")
        except (OSError, ValueError, RuntimeError) as error:  # a NUL in the name; no such user's home
            self.screen.complain(f"{name}: {getattr(error, 'strerror', None) or error}")
            return
        self.screen.say(f"{len(messages)} {'message is' if len(messages) == 1 else 'messages are'} in {name}")

    def _forget(self) -> None:
        self.messages.clear()
        self._unanswered = ""

    def _reset(self) -> None:
        self._forget()
        self.screen.say("the conversation starts over")
