"""Where the files that ship with the server are."""

from pathlib import Path


def configs_dir() -> Path:
    """The folder of YAML presets: part of the package when installed from a wheel, `configs/` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    packaged = package / "_configs"
    return packaged if packaged.is_dir() else package.parent / "configs"
