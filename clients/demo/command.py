"""`cohort demo`: many streams, a dead executor, and nothing lost.

server.py    the server that it starts, whose executor it kills
prompts.py   what is asked
answer.py    one answer, and whether two are equal
session.py   both runs, the kills, the verdict
view.py      the lines that it prints
"""

from __future__ import annotations

import io
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from server.commands.common import INTERRUPTED, fail, lost_output, take_interrupts
from server.commands.options import Text, flag

if TYPE_CHECKING:
    from clients.demo.session import Demonstration, Outcome

MAX_STREAMS = 512
"""More are refused: each step would take very long."""
MAX_KILLS = 10
"""The shortest answer should have room for them."""


ModelArgument = Annotated[
    Text,
    typer.Argument(
        metavar="[MODEL]",
        help="A model, as `cohort serve` takes it [default: SmolLM2-135M-Instruct; cohort-tiny if that is not downloaded]",
        show_default=False,
    ),
]


def demo(
    model: ModelArgument = None,
    streams: Annotated[int, flag("Number of concurrent streams [32].", "--streams")] = 32,
    kills: Annotated[int, flag("Number of times that the executor is killed [1].", "--kills")] = 1,
    seed: Annotated[int, flag("Seed of the prompts and of sampling [0].", "--seed")] = 0,
) -> None:
    """Kill the executor under live streams and compare the answers.

    Starts a server on a free port and runs the same streams twice; in the second run, SIGKILL ends the executor. Reports
    the number of equal answers and the longest pause. Exit code 0: all answers are equal.
    """
    for name, value, low, high in (
        ("--streams", streams, 1, MAX_STREAMS), ("--kills", kills, 1, MAX_KILLS), ("--seed", seed, 0, (1 << 31) - 1),
    ):  # fmt: skip
        if not low <= value <= high:
            fail(f"{name} {value}: it should be from {low} to {high}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")

    from clients.demo.session import Demonstration

    take_interrupts()
    outcome = _demonstrate(Demonstration(_default() if model is None else model, streams, kills, seed))
    if outcome.equal != outcome.streams:
        sys.exit(1)


def _default() -> str:
    """The default model, or the embedded one: the demo is to take seconds, whatever models are on this disk."""
    from server.model_files import default_model

    return default_model.EMBEDDED_NAME if default_model.find() is None else default_model.NAME


def _demonstrate(job: Demonstration) -> Outcome:
    """Ends the process with what went wrong."""
    import asyncio

    import uvloop

    from clients.demo.session import demonstrate
    from clients.demo.view import View
    from clients.own_server import OwnServerFault, Unserved

    ended_by: list[int] = []

    async def work() -> Outcome:
        task = asyncio.current_task()
        assert task is not None

        def end(number: int) -> None:
            ended_by.append(number)
            task.cancel()

        # Of `timeout`, or a terminal that is closed: the server ends all the same.
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, end, number)
        return await demonstrate(job, View())

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work())
    except Unserved as error:
        message, code = str(error), 2
    except OwnServerFault as error:
        message, code = str(error), 1
    except OSError as error:  # of stdout: what the network does is an OwnServerFault
        lost_output(error)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except asyncio.CancelledError:
        sys.exit(128 + ended_by[0])
    fail(message, code)
