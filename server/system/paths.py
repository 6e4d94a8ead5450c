"""Where the files that ship with the server are."""

from pathlib import Path


def configs_dir() -> Path:
    """The folder of YAML presets: it lies beside `server/`, in a checkout and in a wheel."""
    return Path(__file__).resolve().parents[2] / "configs"
