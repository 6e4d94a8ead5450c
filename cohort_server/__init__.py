"""Cohort: a continuous-batching inference server.

This package is the public door. The application behind it (`server`, `engine`, `executors`) keeps names that other
distributions use too, so those packages are no top-level packages of an installation: see `cohort_server.rooms`.
"""

from __future__ import annotations

from cohort_server import rooms


def main() -> None:
    """The console command `cohort`: this process belongs to the application."""
    rooms.enter()
    from server.cli import main as run

    run()
