"""`cohort list --caches`: every folder that Cohort writes to, what it is for, and whether it may be deleted.

All of it lies below $XDG_CACHE_HOME/cohort or ~/.cache/cohort, but for what the hub's library, torch and Triton keep in caches
that other programs share.
"""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server.commands.common import size
from server.commands.list.table import shell_word
from server.model_files import default_model
from server.model_files.folders import roots
from server.model_files.private_cache import cache_root

_OWN = {
    "kernels": ("CPU kernels, compiled at the first start", "yes: compiled anew, 10 to 60 s"),
    "gguf": ("tokenizers of GGUF files", "yes: made anew at the next start"),
    "tokenizers": ("tokenizers of checkpoints without a tokenizer.json", "yes: made anew at the next start"),
    "choice": ("the last choice of a model where none was named", "yes: chosen anew"),
    "pace": ("how fast models compute here", "yes: measured at the next start, 0.5 to 1 s"),
    "adapters": ("copies of LoRA adapters that servers use now", "when no server runs; one removes what dead ones left"),
    "running": ("addresses of running servers, for `cohort ps`", "yes: `cohort ps` forgets those servers"),
    "models": ("the default model", "yes: `cohort fetch-default` fetches it again, 98 MB"),
    "real-models": ("models of `make test-external ONLY=real`", "yes: fetched again"),
}  # fmt: skip
"""Folders below the cache's root by name: what they are for, and whether they may be deleted. A test compares the names with
those that the code writes to."""


def folders(environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the folders that exist, as plain data: `path`, `size` in bytes, `purpose`, `delete`, and `shared` with other
    programs."""
    root = cache_root()
    rows = [_row(root / name, purpose, delete) for name, (purpose, delete) in _OWN.items()]
    rows += [
        _row(path, "unknown: of another version", "yes")
        for path in sorted(root.iterdir() if root.is_dir() else ())
        if path.name not in _OWN
    ]
    place = default_model.environment_folder()
    rows.append(_row(place, "the default model, in this Python environment", "yes: `cohort fetch-default`"))
    for place in runtime_folders(environ):
        rows.append(_row(place, *_OWN["running"]))
    rows += _shared(environ)
    return [row for row in rows if Path(row["path"]).is_dir()]


def runtime_folders(environ: Mapping[str, str]) -> list[Path]:
    """Return the folders for running servers beside that of the cache."""
    from server.running import registry

    return [path for path in registry.folders(environ) if path != cache_root() / registry.CACHE_FOLDER]


def _shared(environ: Mapping[str, str]) -> list[dict[str, Any]]:
    home = Path.home()
    folders = roots(environ, home)
    rows = []
    for path in (*folders["Hugging Face"], *folders["Cohort"]):
        rows.append(
            _row(
                path, "models from the hub", "yes, if no other program needs them: fetched again", shared=True
            )
        )
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    inductor = environ.get("TORCHINDUCTOR_CACHE_DIR") or Path(tempfile.gettempdir()) / f"torchinductor_{user}"
    triton = environ.get("TRITON_CACHE_DIR") or Path(environ.get("TRITON_HOME") or home) / ".triton" / "cache"
    again = "yes: compiled anew"
    rows.append(_row(Path(inductor), "what torch compiled", again, shared=True))
    rows.append(_row(Path(triton), "GPU kernels that Triton compiled", again, shared=True))
    return rows


def _row(path: Path, purpose: str, delete: str, shared: bool = False) -> dict[str, Any]:
    return {"path": str(path), "size": _size_of(path), "purpose": purpose, "delete": delete, "shared": shared}


def _size_of(folder: Path) -> int:
    """Bytes of the files below; what links lead to is not counted."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_size
            except OSError:
                continue
    return total


def show(rows: list[dict[str, Any]]) -> None:
    """Print the folders, and how everything is removed."""
    for row in rows:
        print(shell_word(row["path"]))
        print(
            f"  {size(row['size']):>10}  {row['purpose']}"
            + (" (shared with other programs)" if row["shared"] else "")
        )
        print(f"              delete: {row['delete']}")
    if not rows:
        print("Cohort has written nothing here.")
        return
    root = cache_root()
    own = sum(row["size"] for row in rows if Path(row["path"]).is_relative_to(root))
    print()
    print(f"{size(own)} are Cohort's alone; to remove them: rm -r {shell_word(str(root))}")
    print("To remove the program itself: pip uninstall cohort-server, or delete the checkout with its .venv")
