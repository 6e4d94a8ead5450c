"""What is installed is whole and keeps to itself: it serves from an empty folder, without a compiler, and beside packages
that have the names of its own."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from executors.kernels.compiler import ISAS, Isa, usable_isas

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("clients", "server", "engine", "executors")
# Whichever test comes first pays for building the wheel: in a clean checkout that compiles four variants of the kernels, 25 s
# of CPU time, 90 on a CPU of 2017, and several times that on a machine with other work.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
with_compiler = pytest.mark.parametrize(
    "isa", usable_isas()[:1] if shutil.which("g++") else (), ids=lambda isa: isa.name
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT))
    [made] = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a virtual environment that holds the wheel."""
    return _install(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a virtual environment with an editable install of this checkout, as `make install` makes it."""
    folder = tmp_path_factory.mktemp("editable")
    code = "import sys; from hatchling.build import build_editable; print(build_editable(sys.argv[1]))"
    name = _run(sys.executable, "-c", code, str(folder), cwd=ROOT).split()[-1]
    return _install(folder / name, folder)


def _install(wheel: Path, folder: Path) -> Path:
    """Its dependencies come from the environment of this run, by a .pth file: such a file adds a folder without reading the
    .pth files in it, so an editable install of this checkout does not come along. The folders are those of `sys.path`: a
    .pth file may have added some to the environment of this run, too."""
    python = folder / "venv/bin/python"
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
    _run(
        sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)
    )
    paths = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    [site] = (folder / "venv/lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(paths) + "\n")
    return python.parent


def _site(installed: Path) -> Path:
    [site] = (installed.parent / "lib").glob("python*/site-packages")
    return site


def _run(*command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    run = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env={**_environment(), **(env or {})}
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def _environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }


def _foreign(folder: Path) -> Path:
    """A folder of packages with the application's names, none of which can be imported."""
    for name in ROOMS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise RuntimeError('the foreign {name} was imported')\n")
    return folder


def test_wheel_keeps_its_packages_inside_one(installed: Path) -> None:
    names = {path.name for path in _site(installed).iterdir()} - {"dependencies.pth"}
    [metadata] = [name for name in names if name.endswith(".dist-info")]
    assert names == {"cohort_server", metadata}


def test_wheel_carries_presets_and_answers_help(installed: Path, tmp_path: Path) -> None:
    code = (
        "from cohort_server import rooms\n"
        "rooms.enter()\n"
        "import clients, engine, executors, server, server.system.paths\n"
        "print(*(p.__file__ for p in (engine, executors, server, clients)), server.system.paths.configs_dir(), sep='\\n')"
    )
    *packages, configs = _run(str(installed / "python"), "-c", code, cwd=tmp_path).split()
    assert all(Path(p).is_relative_to(installed.parent) for p in [*packages, configs])
    weights = Path(packages[1]).parent / "tiny/weights"
    assert _files(Path(configs)) == _files(ROOT / "configs")
    assert _files(weights) == _files(ROOT / "executors/tiny/weights")
    assert "serve" in _run(str(installed / "cohort"), "--help", cwd=tmp_path)


def _files(folder: Path) -> set[Path]:
    return {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()}


@with_compiler
def test_wheel_has_kernels_for_each_instruction_set(isa: Isa, wheel: Path) -> None:
    assert not wheel.name.endswith("-none-any.whl")  # its kernels are for one platform
    prefix = "cohort_server/_app/executors/kernels/prebuilt/cohort_cpu-"
    names = [name for name in zipfile.ZipFile(wheel).namelist() if "/prebuilt/" in name]
    assert {name.removeprefix(prefix).partition("-")[0] for name in names} == {each.name for each in ISAS}


def test_a_build_without_a_compiler_says_so(tmp_path: Path) -> None:
    """`auto` warns and makes a wheel for every platform, `required` fails; both in words."""
    copy = tmp_path / "checkout"
    skip = shutil.ignore_patterns("__pycache__", "build", "prebuilt")
    for name in (*ROOMS, "cohort_server", "configs"):
        shutil.copytree(ROOT / name, copy / name, ignore=skip)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environment = {**_environment(), "PATH": str(tmp_path)}
    environment.pop("CXX", None)
    run = subprocess.run(command, cwd=copy, capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert "This wheel has no compiled CPU kernels: no C++ compiler found" in run.stdout + run.stderr
    [made] = tmp_path.glob("*-py3-none-any.whl")
    assert not any("/prebuilt/" in name for name in zipfile.ZipFile(made).namelist())
    environment["COHORT_WHEEL_KERNELS"] = "required"
    run = subprocess.run(command, cwd=copy, capture_output=True, text=True, env=environment)
    assert run.returncode and "COHORT_WHEEL_KERNELS=required" in run.stdout + run.stderr


def test_wheel_serves_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    with _server(installed / "cohort", tmp_path, {}) as url:
        assert _counted(url) == ["3", "4", "5", "6", "7", "8", "9"]
        with urllib.request.urlopen(f"{url}/console/live/timeline.js") as file:
            assert file.headers["Content-Type"].startswith("text/javascript")
    assert list(tmp_path.iterdir()) == [tmp_path / "server.log"]


@with_compiler
def test_wheel_serves_beside_foreign_packages_and_without_a_compiler(
    isa: Isa, installed: Path, tmp_path: Path
) -> None:
    """The working directory and PYTHONPATH hold a foreign `server`, and PATH leads to no compiler."""
    folder = _foreign(tmp_path / "work")
    foreign = _foreign(tmp_path / "elsewhere")
    environment = {
        "PYTHONPATH": str(foreign),
        "PATH": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    with _server(installed / "cohort", folder, environment) as url:
        assert _counted(url) == ["3", "4", "5", "6", "7", "8", "9"]
        log = (folder / "server.log").read_text()
    assert f"CPU kernels {isa.name}" in log, log
    assert "compiled cohort_cpu.cpp" not in log
    assert not list((tmp_path / "cache").rglob("*.so"))
    assert {path.name for path in folder.iterdir()} == {*ROOMS, "server.log"}


@pytest.mark.long(extended=True)
def test_wheel_generates_offline_beside_foreign_packages(installed: Path, tmp_path: Path) -> None:
    folder = _foreign(tmp_path / "work")
    script = folder / "script.py"
    script.write_text(
        "from cohort_server import LLM, SamplingParams\n"
        "[result] = LLM('cohort-tiny').generate('a', SamplingParams(max_tokens=3, ignore_eos=True))\n"
        "print(len(result.outputs[0].token_ids))"
    )
    foreign = {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert _run(str(installed / "python"), str(script), cwd=folder, env=foreign) == "3\n"


def test_an_editable_install_shows_one_package(editable: Path, tmp_path: Path) -> None:
    site = {path.name for path in _site(editable).iterdir()} - {"dependencies.pth"}
    assert {name for name in site if not name.endswith(".dist-info")} == {"_cohort_server.pth"}
    code = (
        "from importlib.util import find_spec\n"
        "import cohort_server.rooms\n"
        "specs = [find_spec(name) for name in ('clients', 'server', 'engine', 'executors', 'tests', 'tools')]\n"
        "print(cohort_server.rooms.folder(), *(spec.origin for spec in specs if spec and spec.origin))"
    )
    python = str(editable / "python")
    assert _run(python, "-c", code, cwd=tmp_path).split() == [str(ROOT)]
    foreign = {"PYTHONPATH": str(_foreign(tmp_path))}
    assert "serve" in _run(str(editable / "cohort"), "--help", cwd=tmp_path, env=foreign)
    child = [python, "-P", "-m", "cohort_server.run", "server.commands.healthcheck"]
    run = subprocess.run(
        child,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**_environment(), **foreign, "COHORT_PORT": "1"},
    )
    assert run.returncode == 1 and run.stderr.startswith("not ready"), run.stderr


def _counted(url: str) -> list[str]:
    """The numbers that the embedded model answers with when it is to count from 3 to 9."""
    message = {"role": "user", "content": "Count from 3 to 9."}
    body = {"model": "cohort-tiny", "messages": [message], "temperature": 0}
    answer = _post(f"{url}/v1/chat/completions", body)
    return re.findall(r"\d+", answer["choices"][0]["message"]["content"])


@contextmanager
def _server(cohort: Path, folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "server.log"
    command = [str(cohort), "serve", "cohort-tiny", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env={**_environment(), **environment}, stdout=output, stderr=output
        )
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
