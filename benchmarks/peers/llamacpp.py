"""llama.cpp's server, bench and quantize, built once from the source that llama-cpp-python's package on PyPI carries.

    python -m benchmarks.peers.llamacpp

Building takes about ten minutes on two cores. CMake and Ninja come from PyPI; a C++ compiler has to be there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

VERSION = "0.3.36"
"""Of llama-cpp-python. Its copy of llama.cpp belongs to it."""
_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
PROGRAMS = ("llama-server", "llama-bench", "llama-quantize")
_TOOLS = ("cmake", "ninja", "scikit-build-core")
"""With the last, pip finds out that a source package is the one that was asked for."""
_OPTIONS = (
    "CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "LLAMA_CURL=OFF", "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF",
    "LLAMA_BUILD_UI=OFF",
)  # fmt: skip


def folder() -> Path:
    """Where it is: PEER_LLAMA, or a place in the user's cache. The programs are in `bin`."""
    return Path(os.environ.get("PEER_LLAMA") or Path.home() / ".cache/cohort-peers/llama").expanduser()


def ensure() -> Path:
    """The folder, with everything built where it is not there yet.

    Raises RuntimeError without a C++ compiler, and subprocess.CalledProcessError where pip or the build fails. `bin` appears
    when all programs are built.
    """
    base = folder()
    if all((base / "bin" / name).exists() for name in PROGRAMS):
        return base
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        raise RuntimeError(
            f"llama.cpp has to be built, and there is no C++ compiler {compiler!r}: on Debian, apt install g++"
        )
    print(f"building llama.cpp (llama-cpp-python {VERSION}) in {base}: about ten minutes", flush=True)
    base.mkdir(parents=True, exist_ok=True)
    venv = base / "v"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    _pip(venv, "install", *_TOOLS)
    source = _unpacked(base, _fetched(base, venv))
    tools = {**os.environ, "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}
    with (base / "build.log").open("w") as log:
        for words in (
            ["cmake", "-S", ".", "-B", "build", "-G", "Ninja", *(f"-D{option}" for option in _OPTIONS)],
            ["ninja", "-C", "build", *PROGRAMS],
        ):
            subprocess.run(words, cwd=source, env=tools, stdout=log, stderr=log, check=True)
    link = base / "bin"
    link.unlink(missing_ok=True)
    link.symlink_to(source / "build/bin")
    return base


def _fetched(base: Path, venv: Path) -> Path:
    wanted = base / "requirements.txt"
    wanted.write_text(f"llama-cpp-python=={VERSION} --hash=sha256:{_SHA256}\n")
    source = ("--no-deps", "--no-binary", "llama-cpp-python", "--no-build-isolation", "--require-hashes")
    _pip(venv, "download", *source, "-r", str(wanted), "-d", str(base))
    return base / f"llama_cpp_python-{VERSION}.tar.gz"


def _unpacked(base: Path, archive: Path) -> Path:
    """The folder of llama.cpp's source."""
    with tarfile.open(archive) as files:
        files.extractall(base, filter="data")
    return base / f"llama_cpp_python-{VERSION}/vendor/llama.cpp"


def _pip(venv: Path, *words: str) -> None:
    command = [str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--quiet", *words]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    print(ensure())
