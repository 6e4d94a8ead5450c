"""Paths of the files that ship with the server."""

from pathlib import Path


def configs_dir() -> Path:
    """The folder of YAML presets, beside `server/` in a checkout and in a wheel."""
    return Path(__file__).resolve().parents[2] / "configs"
