"""What a packaged model brings besides its weights: messages before each chat, and defaults of requests that are no sampling.

Order as in Ollama (server/routes.go): system text, packaged messages, the request's own. The system text is left out if the
request begins with one of its own, which then stands first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.model_defaults.ollama_params import OllamaParams
from server.model_files.ollama_package import Package

_SYSTEM_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Preset:
    """`stop`, `seed` and `max_tokens`: for requests without them; `stop_token_ids`: texts of `stop` that are special tokens,
    which never reach the text of an answer. `context`: the length that the package asks for. `template`, in Go's language, is
    only shown, as are `licenses`. `adapter`: the name of the adapter's file, "" without one."""

    system: str = ""
    messages: tuple[Mapping[str, str], ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    max_tokens: int | None = None
    context: int | None = None
    template: str = ""
    licenses: tuple[str, ...] = ()
    adapter: str = ""

    @classmethod
    def of(cls, package: Package, params: OllamaParams | None, hidden: Mapping[str, int]) -> Preset:
        """`params`: None if the operator chose other defaults. `hidden`: ids of the tokens that answers do not show, by text."""
        chosen = params or OllamaParams({})
        return cls(
            system=package.system,
            messages=package.messages,
            stop=chosen.stop,
            stop_token_ids=tuple(hidden[text] for text in chosen.stop if text in hidden),
            seed=chosen.seed,
            max_tokens=chosen.max_tokens,
            context=chosen.context,
            template=package.template,
            licenses=package.licenses,
            adapter="" if package.adapter is None else package.adapter.name,
        )

    def before(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the messages of a chat, plain data, with those of the package."""
        own = next(
            (number for number, one in enumerate(messages) if one.get("role") not in _SYSTEM_ROLES),
            len(messages),
        )
        if own:
            return [*messages[:own], *self.messages, *messages[own:]]
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages, *messages]
