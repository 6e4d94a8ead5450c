"""The wheel is whole: installed apart from this checkout, it serves the embedded model from an empty folder."""

import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a virtual environment that holds the wheel.

    Its dependencies come from the environment of this run, by a .pth file: such a file adds a folder without
    reading the .pth files in it, so an editable install of this checkout does not come along.
    """
    folder = tmp_path_factory.mktemp("wheel")
    python = folder / "venv/bin/python"
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT))
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
    [wheel] = folder.glob("*.whl")
    _run(
        sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)
    )
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    [site] = (folder / "venv/lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(sorted(paths)) + "\n")
    return python.parent


def _run(*command: str, cwd: Path | None = None) -> str:
    run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=_environment())
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def _environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }


@pytest.mark.timeout(120)
def test_wheel_carries_presets_and_answers_help(installed: Path, tmp_path: Path) -> None:
    code = (
        "import engine, executors, server, server.system.paths\n"
        "print(*(p.__file__ for p in (engine, executors, server)), server.system.paths.configs_dir(), sep='\\n')"
    )
    *packages, configs = _run(str(installed / "python"), "-c", code, cwd=tmp_path).split()
    assert all(Path(p).is_relative_to(installed.parent) for p in [*packages, configs])
    weights = Path(packages[1]).parent / "tiny/weights"
    assert _files(Path(configs)) == _files(ROOT / "configs")
    assert _files(weights) == _files(ROOT / "executors/tiny/weights")
    assert "serve" in _run(str(installed / "cohort"), "--help", cwd=tmp_path)


def _files(folder: Path) -> set[Path]:
    return {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_wheel_serves_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    with _server(installed / "cohort", tmp_path) as url:
        message = {"role": "user", "content": "Count from 3 to 9."}
        body = {"model": "cohort-tiny", "messages": [message], "temperature": 0}
        answer = _post(f"{url}/v1/chat/completions", body)
    words = answer["choices"][0]["message"]["content"]
    assert re.findall(r"\d+", words) == ["3", "4", "5", "6", "7", "8", "9"], words
    assert list(tmp_path.iterdir()) == [tmp_path / "server.log"]


@contextmanager
def _server(cohort: Path, folder: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "server.log"
    command = [str(cohort), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=folder, env=_environment(), stdout=output, stderr=output)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 90
        while not _is_ready(url):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield url
        process.terminate()
        assert process.wait(30) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _post(url: str, body: dict[str, Any]) -> Any:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)
