"""`cohort cache`: what a directory of `--kv-cache-dir` holds."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Annotated

import typer

from server.commands.common import fail, size

app = typer.Typer(no_args_is_help=True, help="Show or clear the prompts that servers keep on disk.")
_Dir = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of --kv-cache-dir.")]


@app.command("list")
def list_files(directory: _Dir) -> None:
    """List the files, the latest used first: tokens of the prompt, size, age of use, model, adapter, caller."""
    from engine.kv.disk.directory import look

    for file in sorted(look(_existing(directory)), key=lambda one: -one.used):
        chain = file.chain
        age = max(0.0, time.time() - file.used)
        marks = [chain.model, *([f"adapter {chain.adapter[:12]}"] if chain.adapter else [])]
        marks += [f"salt {chain.salt}"] if chain.salt else []
        typer.echo(
            f"{len(chain.tokens):>8} tokens  {size(file.num_bytes):>9}  {age:>9.0f} s ago  {', '.join(marks)}"
        )


@app.command()
def stat(directory: _Dir) -> None:
    """Sum the files up: number, bytes and longest prompt of each model, and of each caller's salt."""
    from engine.kv.disk.directory import look

    rows: dict[tuple[str, str], list[int]] = {}
    for file in look(_existing(directory)):
        row = rows.setdefault((file.chain.model, file.chain.salt), [0, 0, 0])
        row[0] += 1
        row[1] += file.num_bytes
        row[2] = max(row[2], len(file.chain.tokens))
    for (model, salt), (count, num_bytes, tokens) in sorted(rows.items()):
        of_caller = f", salt {salt}" if salt else ""
        typer.echo(f"{model}{of_caller}: {count} files, {size(num_bytes)}, prompts of up to {tokens} tokens")
    if not rows:
        typer.echo("no prompts")


@app.command()
def clear(directory: _Dir) -> None:
    """Delete the files that no running server holds."""
    from engine.kv.disk.directory import CacheDirectory

    cache = CacheDirectory(_existing(directory), 1)
    try:
        files = cache.open()
    except OSError as error:
        fail(f"{directory}: {error.strerror}")
    num_others = 0
    for file in files:
        if file.own:
            cache.delete(file.path)
        else:
            num_others += 1
    for folder in cache.own_folders:  # those of running servers stay, although they may be empty
        if not any(folder.glob("*.kv")):
            with contextlib.suppress(OSError):
                (folder / "lock").unlink()
                folder.rmdir()
    cache.close()
    others = f"; {num_others} are held by running servers" if num_others else ""
    typer.echo(f"{len(files) - num_others} files deleted{others}")


def _existing(directory: Path) -> Path:
    if not directory.is_dir():
        fail(f"{directory} is no directory")
    return directory
