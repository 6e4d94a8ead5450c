"""The verbs of the `cohort` command: a table of names and places, of which one module is imported when a verb is typed.

The one place that knows both the server's verbs and those of `clients/`.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from server.commands.common import IGNORED_FLAGS, fail, lost_output, set_log_format
from server.settings.table import TABLE

VERBS = {
    "version": "server.commands.version:version",
    "serve": "server.commands.serve:serve",
    "run": "clients.chat.run:run",
    "chat": "clients.chat.command:chat",
    "launch": "clients.launch.command:launch",
    "pull": "server.commands.pull:pull",
    "ps": "server.commands.running.ps:ps",
    "stop": "server.commands.running.stop:stop",
    "info": "server.commands.info:info",
    "verify": "server.commands.verify.command:verify",
    "doctor": "clients.doctor.command:doctor",
    "demo": "clients.demo.command:demo",
    "list": "server.commands.list.command:list_models",
    "cache": "server.commands.cache:app",
    "fetch-default": "server.commands.fetch_default:fetch_default",
    "bench": "clients.bench.command:bench",
    "ray": "server.commands.ray:app",
}
"""Module and function of each verb, in the order of the help; `ray` is a group of verbs. A module may have a COMMAND_CLASS."""


def application(names: Iterable[str] = VERBS) -> typer.Typer:
    """The command with these verbs, whose modules are imported."""
    app = _command()
    for name in names:
        module, verb = _load(name)
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, name=name)
        else:
            app.command(name, cls=getattr(module, "COMMAND_CLASS", None))(verb)
    return app


def _overview() -> typer.Typer:
    """The command with names and descriptions alone: Typer would inspect the parameters of all verbs, which takes longer than the
    help."""
    app = _command()
    for name in VERBS:
        _, verb = _load(name)
        description = verb.info.help if isinstance(verb, typer.Typer) else inspect.getdoc(verb)
        app.command(name, help=str(description))(_nothing)
    return app


def _command() -> typer.Typer:
    app = typer.Typer(
        name="cohort",
        help="Serve language models with an OpenAI-compatible API. Without a model, `cohort serve` serves the best one on this "
        "disk that fits, and where there is none SmolLM2-135M-Instruct, a small model to try the server with.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        # Without a value for `--help` Typer would import pydantic to read None as a switch, which takes longer than the help.
        context_settings={"default_map": {"help": False}},
    )
    app.callback()(_cohort)
    return app


def _load(name: str) -> tuple[Any, Any]:
    """The module of a verb, and the verb."""
    place, _, attribute = VERBS[name].partition(":")
    module = import_module(place)
    return module, getattr(module, attribute)


def _version(is_given: bool) -> None:
    if is_given:
        _load("version")[1]()
        raise typer.Exit


def _cohort(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _nothing() -> None:
    """Stands for a verb that is not run."""


def main() -> None:
    """Run the command line. Unknown flags are answered before Typer sees them: it would only say that there is no such one."""
    argv = _each_named(sys.argv[1:])
    word = argv[0] if argv else "--help"
    if not word.startswith("-") and word not in VERBS:
        from server.commands.other_verbs import instead_of

        fail(instead_of(argv, VERBS))
    app = application([word]) if word in VERBS else _overview()
    command: Any = typer.main.get_command(app)
    # What other servers call their flags is of no use to the other verbs: Typer answers there.
    for words in (["serve"], ["ray", "serve"]):
        if argv[: len(words)] == words:
            set_log_format(_log_format(argv))
            verb = functools.reduce(lambda group, word: group.commands[word], words, command)
            argv = [*words, *_without_foreign(argv[len(words) :], known_options(verb))]
    if not argv:
        app()  # the help
    try:
        code = command.main(argv, prog_name="cohort", standalone_mode=False)
    except TyperException as error:
        _refuse(error)
    except OSError as error:
        # Of the other verbs, which have told what is wrong with their files, it is stdout's.
        if word == "serve" or argv[:2] == ["ray", "serve"]:
            raise
        lost_output(error)
    try:
        sys.stdout.flush()
    except OSError as error:
        lost_output(error)
    sys.exit(code or 0)


def _log_format(argv: list[str]) -> str | None:
    """What the words or the environment say of the log's form, before Typer reads them: errors about the words have it too."""
    row = TABLE["log_format"]
    form = os.environ.get(row.variable)
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        name, has_value, value = word.partition("=")
        if name == row.flag:  # the last counts
            form = value if has_value else following
    return form


def _without_foreign(argv: list[str], options: dict[str, bool]) -> list[str]:
    """The words without flags of other servers that change nothing here, which are noted for the log. Ends the process with one
    line if there are other unknown flags."""
    if all(not word.startswith("-") or word.partition("=")[0] in options for word in argv):
        return argv
    # Here only: the tables take as long to import as the help takes to print.
    from server.settings.foreign.command_line import read_flags

    flags = read_flags(argv, options)
    if message := flags.complaint:
        fail(message)
    IGNORED_FLAGS.extend(flags.warnings)
    return flags.argv


def _each_named(argv: list[str]) -> list[str]:
    """Name --lora-modules before each of its values: vLLM takes several behind one flag."""
    words: list[str] = []
    module = False
    for word in argv:
        if module and not word.startswith("-") and ("=" in word or word.startswith("{")):
            if words[-1] != "--lora-modules":
                words.append("--lora-modules")
        else:
            module = word == "--lora-modules"
        words.append(word)
    return words


def _refuse(error: TyperException) -> NoReturn:
    """Typer's complaint about a command line, as all others look."""
    context = getattr(error, "ctx", None)
    message = error.format_message().rstrip(".")
    fail(f"{message[:1].lower()}{message[1:]}; see {context.command_path if context else 'cohort'} --help")


def known_options(command: Any) -> dict[str, bool]:
    """Flags of a Typer command, each with whether it takes a value."""
    options = {"--help": False}
    for parameter in command.params:
        names = [*parameter.opts, *parameter.secondary_opts]
        for name in names if parameter.param_type_name == "option" else ():
            options[name] = not getattr(parameter, "is_flag", False)
    return options
