"""`cohort version`, and the flag --version."""

from __future__ import annotations

import typer

from server import __version__


def version() -> None:
    """Print the version."""
    typer.echo(f"cohort {__version__}")
