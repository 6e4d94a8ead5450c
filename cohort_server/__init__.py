"""Cohort: a continuous-batching inference server, and the same engine without HTTP.

    from cohort_server import LLM, SamplingParams

    with LLM("path/to/model") as llm:
        [result] = llm.generate(["Once upon a time"], SamplingParams(max_tokens=32))

This package is the public interface. The application behind it (`server`, `engine`, `executors`, `clients`) keeps names that
other distributions use too, so those packages are no top-level packages of an installation: see `cohort_server.rooms`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cohort_server import rooms, standard_streams, working_directory

if TYPE_CHECKING:
    from server.offline import (
        LLM,
        CompletionOutput,
        Logprob,
        RequestOutput,
        SamplingParams,
        StructuredOutputsParams,
    )

__all__ = [
    "LLM",
    "CompletionOutput",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "main",
]


def main() -> None:
    """The console command `cohort`: this process belongs to the application."""
    standard_streams.open_standard_streams()
    working_directory.leave_removed_directory()
    rooms.enter()
    from server.cli import main as run

    run()


def __getattr__(name: str) -> Any:
    """Import what `LLM` needs at first use: `import cohort_server` alone costs nothing."""
    if name == "__version__":
        return rooms.load()["server"].__version__
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    rooms.load()
    from server import offline

    return getattr(offline, name)
