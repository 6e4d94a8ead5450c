"""The executor as a child process: client, child and wire format. `connect` is the way in.

    connect -> RemoteExecutor (client.py) -> Life (life.py: futures, death) -> MessageStream -> socketpair
                    or -> RankProcesses (group.py: several of them as one)                          |
                                              HangWatch (watch.py)                                  |
    child.py: I/O thread -> main thread -> StepGuard (guard.py) -> the executor       messages.py over wire.py

Nothing is imported here: the child needs only the wire, and the server never needs the child's modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from executors.contract import ConfigError

if TYPE_CHECKING:
    from executors.contract import ExecutorConfig, ExecutorDied
    from executors.process.client import RemoteExecutor
    from executors.process.inline import InlineExecutor
    from executors.process.output import ChildOutput
    from executors.process.standby import StandbyKind


def new_turns() -> str:
    """Make what executors take turns by that compute on the same cores: `turns` of `connect`. It lives as long as this process.
    Raises OSError or AttributeError where the system has no such files."""
    from executors.process.core_turns import CoreTurns

    return CoreTurns.create().path


def connect(
    config: ExecutorConfig,
    mode: Literal["process", "inline"] = "process",
    *,
    on_death: Callable[[ExecutorDied], None] | None = None,
    output: ChildOutput | None = None,
    turns: str | None = None,
    standby: StandbyKind = "off",
) -> RemoteExecutor | InlineExecutor:
    """The executor that `config` names, in a child process or on a thread of this one; nothing is started before warmup.
    `output` takes what child processes write to stderr. `turns`: as for `RemoteExecutor`; none are taken on a thread. `standby`:
    as for `RemoteExecutor`.

    Raises ValueError for another mode, ConfigError for several ranks inline, or a process that stands by for a thread.
    """
    if mode == "process":
        from executors import registry
        from executors.process.client import RemoteExecutor

        imports = registry.imports_of(config.executor)
        return RemoteExecutor(
            config, on_death=on_death, output=output, imports=imports, turns=turns, standby=standby
        )
    if mode == "inline":
        if config.parallel.world_size > 1:
            raise ConfigError("executor_mode inline: several ranks need a process each; take process")
        if standby not in ("auto", "off"):
            raise ConfigError(
                f"standby_executor {standby}: no process stands by for a thread; take executor_mode process"
            )
        from executors.process.inline import InlineExecutor

        return InlineExecutor(config, on_death=on_death)
    raise ValueError(f"executor mode {mode!r}: it is process or inline")
