"""ONNX Runtime and OpenVINO from PyPI, installed once into an environment of their own, which sees the torch of this one.

python -m benchmarks.encoders.install
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

PACKAGES = ("onnxruntime==1.32.0", "onnx==1.23.2", "openvino==2026.4.1", "nncf==3.4.0", "tokenizers==0.23.3")
"""None of them brings another torch."""


def folder() -> Path:
    """Where the environment and the models made for it are."""
    return Path.home() / ".cache/cohort-peers/encoders"


def ensure() -> Path:
    """Return the environment's Python, installed where it is not there yet. Raises subprocess.CalledProcessError."""
    python = folder() / "bin/python"
    done = folder() / "installed"
    if not done.exists():
        print(f"installing {', '.join(PACKAGES)} into {folder()}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder())], check=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, *PACKAGES], check=True)
        # Behind its own packages, so that pip has seen nothing of ours.
        site = next(folder().glob("lib/python*/site-packages"))
        (site / "torch_of_cohort.pth").write_text(sysconfig.get_path("purelib") + "\n")
        done.write_text("\n".join(PACKAGES))
    return python


if __name__ == "__main__":
    print(ensure())
