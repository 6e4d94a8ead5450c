"""/set and /show of `cohort chat`, also in the words of Ollama's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clients.chat.client import ChatClient
from clients.chat.parameters import Parameters
from clients.chat.screen import Screen
from server.commands.common import CONTROL

_TOPICS = ("info", "parameters", "system")


class SetCommand:
    """Owns what /set changes beside the parameters: whether the model is to reason, and what the screen shows."""

    def __init__(
        self, screen: Screen, client: ChatClient, parameters: Parameters, set_system: Callable[[str], None]
    ) -> None:
        self._screen = screen
        self._client = client
        self._parameters = parameters
        self._set_system = set_system
        self._thinks: bool | None = None
        """None: as the chat template has it."""
        self.verbose = True
        """Whether a line below each answer has its figures."""

    @property
    def template_options(self) -> Mapping[str, Any]:
        """What goes into each request beside the parameters. Templates have two names for one thing."""
        if self._thinks is None:
            return {}
        return {"chat_template_kwargs": dict.fromkeys(("enable_thinking", "thinking"), self._thinks)}

    def set(self, text: str) -> None:
        """/set with what stands behind it."""
        name, _, rest = text.partition(" ")
        switches = {
            "wordwrap": (self._set_wraps, True), "nowordwrap": (self._set_wraps, False),
            "verbose": (self._set_verbose, True), "quiet": (self._set_verbose, False),
            "think": (self._set_thinks, True), "nothink": (self._set_thinks, False),
        }  # fmt: skip
        if name in switches:
            change, value = switches[name]
            change(value)
        elif name == "system":
            self._set_system(rest.strip())
        elif not name or (name == "parameter" and not rest.strip()):
            self._show_parameters()
        else:
            try:
                self._screen.say(self._parameters.set(rest.strip() if name == "parameter" else text))
            except ValueError as error:
                self._screen.complain(CONTROL.sub("", str(error)))

    def show(self, text: str) -> None:
        """/show with what stands behind it."""
        match text or "info":
            case "parameters":
                self._show_parameters()
            case "system":
                self._set_system("")
            case "info":
                context = self._client.card.get("max_model_len")
                length = f", {context:,} tokens of context" if isinstance(context, int) else ""
                self._screen.say(f"{CONTROL.sub('', self._client.model or '')} at {self._client.url}{length}")
            case _:
                self._screen.say(f"/show shows {', '.join(_TOPICS[:-1])} or {_TOPICS[-1]}")

    def _show_parameters(self) -> None:
        for line in self._parameters.lines():
            self._screen.say(CONTROL.sub("", line))

    def _set_wraps(self, value: bool) -> None:
        self._screen.wraps = value
        self._screen.say(f"lines break {'at words' if value else 'where the terminal ends'}")

    def _set_verbose(self, value: bool) -> None:
        self.verbose = value
        self._screen.say(f"{'a' if value else 'no'} line below each answer has its figures")

    def _set_thinks(self, value: bool) -> None:
        self._thinks = value
        self._screen.say(
            f"the model {'reasons' if value else 'does not reason'} before it answers, if its template can choose"
        )
