"""OpenVINO GenAI and ik_llama.cpp from PyPI, each installed once into an environment of its own.

python -m benchmarks.peers.one_stream_install openvino|ik
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VERSIONS = {"openvino": "2026.4.1.0", "ik": "0.1.5"}
_PACKAGES = {"openvino": ("openvino-genai",), "ik": ("ik-llama-cpp-python", "numpy")}
"""The first is the one that has a version here. ik's wheels need AVX2."""
_DONE = "installed-{version}"


def folder(library: str) -> Path:
    """Where the environment is: PEER_OPENVINO, PEER_IK, or a place in the user's cache."""
    place = os.environ.get(f"PEER_{library.upper()}") or Path.home() / ".cache/cohort-peers" / library
    return Path(place).expanduser()


def ensure(library: str) -> Path:
    """The environment, installed where it is not there yet: 300 MB for OpenVINO, 130 for ik_llama.cpp.

    Raises subprocess.CalledProcessError where pip fails; then the next call tries again.
    """
    venv, version = folder(library), VERSIONS[library]
    done = venv / _DONE.format(version=version)
    if done.exists():
        return venv
    first, *others = _PACKAGES[library]
    print(f"installing {first} {version} into {venv}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, f"{first}=={version}", *others], check=True)
    done.touch()
    return venv


if __name__ == "__main__":
    print(ensure(sys.argv[1]))
