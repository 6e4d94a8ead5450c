"""`cohort serve`: read the settings, listen, and start the server."""

from __future__ import annotations

import os
import sys
from typing import Any

from cohort_server.lasting_imports import lasting_imports
from server.commands.common import IGNORED_FLAGS, fail, set_log_format
from server.commands.options import ModelArgument, with_settings
from server.settings.table import CONFIG, TABLE
from server.system import first_lines


@with_settings((*TABLE, CONFIG.name), short={"tensor_parallel_size": "-tp", "pipeline_parallel_size": "-pp"})
def serve(model_dir: ModelArgument = None, **flags: Any) -> None:
    """Start the server. A setting is a flag (--max-num-seqs), an environment variable (COHORT_MAX_NUM_SEQS) or a key of a YAML
    file (max_num_seqs in --config). Flags take precedence over the environment, and the environment over the file."""
    model_flag = flags["model"]
    if model_dir is not None and model_flag is not None and model_dir != model_flag:
        fail(f"two models are named: {model_dir} and --model {model_flag}")
    flags["model"] = model_flag if model_dir is None else model_dir

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
    with lasting_imports():
        from server.startup import bootstrap

    sys.exit(bootstrap.run(chosen, listener, [*IGNORED_FLAGS, *notes]))
