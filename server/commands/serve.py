"""`cohort serve`: read the settings, listen, and start the server."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from cohort_server.lasting_imports import lasting_imports
from server.commands.common import IGNORED_FLAGS, busy, fail, set_log_format
from server.commands.options import ModelArguments, flag, with_settings
from server.settings.table import CONFIG, TABLE
from server.system import first_lines

if TYPE_CHECKING:
    from server.settings.table import Settings

Check = Annotated[
    bool, flag("Print which of several models fit into memory together, and load nothing.", "--check")
]


@with_settings((*TABLE, CONFIG.name), short={"tensor_parallel_size": "-tp", "pipeline_parallel_size": "-pp"})
def serve(arguments: ModelArguments = None, check: Check = False, **flags: Any) -> None:
    """Start the server. A setting is a flag (--max-num-seqs), an environment variable (COHORT_MAX_NUM_SEQS) or a key of a YAML
    file (max_num_seqs in --config). Flags take precedence over the environment, and the environment over the file."""
    flags |= _named_models(arguments or [], flags["model"], flags["models"])

    from server.http.listener import listen
    from server.settings.foreign.keys import remove_secrets
    from server.settings.load import SettingsError, load
    from server.system.exit_codes import code_of

    try:
        chosen, notes = load(flags, os.environ)
        set_log_format(chosen.log_format)
        if check:
            _check(chosen)
        remove_secrets(os.environ)
        listener = listen(chosen.host, chosen.port, chosen.write_timeout)
    except SettingsError as error:
        fail(str(error), code_of(error))

    # The large imports come last: a client that connects by now waits in the socket's queue and is not refused.
    first_lines.settle(chosen.log_format, chosen.log_level)
    with lasting_imports():
        from server.startup import bootstrap

    sys.exit(bootstrap.run(chosen, listener, [*IGNORED_FLAGS, *notes]))


def _check(settings: Settings) -> NoReturn:
    """Print which of several models fit together, and end. Raises SettingsError."""
    from server.models.declared import serves_several
    from server.startup.port import Port

    if not serves_several(settings):
        fail("--check is for several models; `cohort info MODEL` tells what one needs")
    first_lines.stop()
    with busy("checking the models"):
        report = Port(settings).report()
    print(report.text)
    sys.exit(0 if report.is_good else 2)


def _named_models(arguments: list[str], model_flag: str | None, models_flag: str | None) -> dict[str, Any]:
    """The settings `model` and `models` of the arguments: one model, or pairs NAME=SOURCE."""
    if not any(is_pair(one) for one in arguments):
        if len(arguments) > 1:
            names = ", ".join(arguments)
            fail(
                f"several models are named: {names}; write NAME=SOURCE for each, which serves them at one address"
            )
        model = arguments[0] if arguments else None
        if model is not None and model_flag is not None and model != model_flag:
            fail(f"two models are named: {model} and --model {model_flag}")
        return {"model": model_flag if model is None else model}
    if models_flag is not None:
        fail("models are named twice: by arguments and by --models")
    pairs: dict[str, str] = {}
    for one in arguments:
        name, equals, source = one.partition("=")
        if not equals or not name or not source:
            fail(f"{one}: beside NAME=SOURCE each model needs a name")
        if name in pairs:
            fail(f"two models have the name {name}")
        pairs[name] = source
    return {"model": model_flag, "models": pairs}


def is_pair(argument: str) -> bool:
    """Whether an argument is NAME=SOURCE and not the path of a model."""
    return "=" in argument and not Path(argument).exists()
