"""Options of the verbs. Those that are settings of `cohort serve` are made from the settings table."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from server.settings.kinds import Setting
from server.settings.table import CONFIG, DEFAULTS, TABLE

Verb = TypeVar("Verb", bound=Callable[..., None])


def flag(help_: str, *names: str, metavar: str | None = None) -> Any:
    """An option of a verb; its default is said in the help text."""
    return typer.Option(*names, help=help_, metavar=metavar, show_default=False)


Text = str | None
Number = int | None

ModelArgument = Annotated[
    Text,
    typer.Argument(
        metavar="[MODEL]",
        help="A model directory, a GGUF file, a hub name ORG/NAME or ORG/NAME:Q4_K_M, or a name that `cohort list` shows "
        "[default: the best one on this disk that fits, see `cohort list`; SmolLM2-135M-Instruct where there is none]",
        show_default=False,
    ),
]
ModelArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL | NAME=SOURCE ...]",
        help="A model directory, a GGUF file, a hub name ORG/NAME or ORG/NAME:Q4_K_M, or a name that `cohort list` shows "
        "[default: the best one on this disk that fits, see `cohort list`; SmolLM2-135M-Instruct where there is none]. Several "
        "models, each with a name, are served at one address and loaded at their first call.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, flag("Print JSON.", "--json")]

DEFAULT_URL = f"http://{DEFAULTS.host}:{DEFAULTS.port}"
"""Where a server listens that was started without flags."""


def with_settings(names: Iterable[str], short: Mapping[str, str] | None = None) -> Callable[[Verb], Verb]:
    """Give a verb the flags of these settings, in place of its `**` parameter, which receives what was given for them.

    `short` maps names of settings to one more spelling of their flag, such as `-q`. A setting whose flag was not given is
    None. Values other than switches stay strings: `server.settings.load` reads and checks them, as it does those of the
    environment.
    """
    rows = [CONFIG if name == CONFIG.name else TABLE[name] for name in names]
    options = [_option(row, (short or {}).get(row.name)) for row in rows]

    def add(verb: Verb) -> Verb:
        signature = inspect.signature(verb, eval_str=True)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        # Typer makes a command from what `inspect.signature` says of a function.
        verb.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        return verb

    return add


def _option(row: Setting, short: str | None) -> inspect.Parameter:
    spellings = (row.switch_flags if row.is_switch else row.flag, *((short,) if short else ()))
    kind: Any = bool if row.is_switch else list[str] if row.several else str
    option = flag(row.help_line, *spellings, metavar=row.metavar or None)
    return inspect.Parameter(
        row.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )
