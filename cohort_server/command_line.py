"""The verbs of the `cohort` command. Light: what serving needs is imported when a server is really started."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from clients.bench.command import BenchCommand, bench
from clients.chat.command import chat
from clients.chat.run import run
from clients.demo.command import demo
from clients.doctor.command import doctor
from clients.launch.command import launch
from server import __version__
from server.commands.common import IGNORED_FLAGS, fail, lost_output, set_log_format
from server.commands.fetch_default import fetch_default
from server.commands.info import info
from server.commands.list.command import list_models
from server.commands.options import ModelArgument, with_settings
from server.commands.pull import pull
from server.commands.ray import app as ray_app
from server.commands.running.ps import ps
from server.commands.running.stop import stop
from server.commands.verify.command import verify
from server.settings.table import CONFIG, TABLE
from server.system import first_lines

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


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"cohort {__version__}")
        raise typer.Exit


@app.callback()
def _cohort(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def version() -> None:
    """Print the version."""
    _version(True)


@app.command(
    help="Start the server. A setting is a flag (--max-num-seqs), an environment variable (COHORT_MAX_NUM_SEQS) or a key of "
    "a YAML file (max_num_seqs in --config). Flags take precedence over the environment, and the environment over the file.",
)
@with_settings((*TABLE, CONFIG.name), short={"tensor_parallel_size": "-tp", "pipeline_parallel_size": "-pp"})
def serve(model_dir: ModelArgument = None, **flags: Any) -> None:
    """Start the server."""
    named = flags["model"]
    if model_dir is not None and named is not None and model_dir != named:
        fail(f"two models are named: {model_dir} and --model {named}")
    flags["model"] = named if model_dir is None else model_dir

    from server.http.listener import listen
    from server.settings.foreign.keys import remove_secrets
    from server.settings.load import SettingsError, load
    from server.system.exit_codes import code_of

    try:
        chosen, notes = load(flags, os.environ)
        set_log_format(chosen.log_format)
        remove_secrets(os.environ)
        listener = listen(chosen.host, chosen.port, chosen.write_timeout)
    except SettingsError as error:
        fail(str(error), code_of(error))

    # The large imports come last: a client that connects by now waits in the socket's queue and is not refused.
    first_lines.settle(chosen.log_format, chosen.log_level)
    from server import bootstrap

    sys.exit(bootstrap.run(chosen, listener, [*IGNORED_FLAGS, *notes]))


for _verb in (run, chat, launch, pull, ps, stop, info, verify, doctor, demo):
    app.command()(_verb)
app.command(name="list")(list_models)
app.command(name="fetch-default")(fetch_default)
app.command(cls=BenchCommand)(bench)
app.add_typer(ray_app)


def main() -> None:
    """Run the command line. Unknown flags are answered before Typer sees them: it would only say that there is no such one."""
    argv = _each_named(sys.argv[1:])
    if argv and not argv[0].startswith("-") and argv[0] not in (known := {*_verbs(), "ray"}):
        from server.commands.other_verbs import instead_of

        fail(instead_of(argv, known))
    _limit_to(argv[0] if argv else None)
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
        if argv[0] == "serve" or argv[:2] == ["ray", "serve"]:
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

    found = read_flags(argv, options)
    if message := found.complaint:
        fail(message)
    IGNORED_FLAGS.extend(found.warnings)
    return found.argv


def _each_named(argv: list[str]) -> list[str]:
    """Name --lora-modules before each of its values: vLLM takes several behind one flag."""
    found: list[str] = []
    module = False
    for word in argv:
        if module and not word.startswith("-") and ("=" in word or word.startswith("{")):
            if found[-1] != "--lora-modules":
                found.append("--lora-modules")
        else:
            module = word == "--lora-modules"
        found.append(word)
    return found


def _limit_to(word: str | None) -> None:
    """Keep one verb of `app`; where `word` is none of them, keep names and descriptions of all, which the help shows.

    Typer inspects the parameters of all verbs before it runs one of them, which takes longer than the help of that one.
    """
    names = _verbs()
    if word == "ray":
        app.registered_commands = []
        return
    for verb in ray_app.registered_commands:
        verb.callback = _nothing
    if word in names:
        app.registered_commands = [names[word]]
        return
    for name, verb in names.items():
        verb.name, verb.help, verb.callback = name, verb.help or inspect.getdoc(verb.callback), _nothing


def _verbs() -> dict[str, Any]:
    """Typer's commands by name, as they are typed."""
    return {
        verb.name or str(getattr(verb.callback, "__name__", "")): verb for verb in app.registered_commands
    }


def _nothing() -> None:
    """Stands for a verb that is not run."""


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
