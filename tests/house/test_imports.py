"""The serving process is light: no torch in it, and a help text at once."""

import ast
import os
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter.configuration import configure
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.independence import IndependenceContract
from importlinter.domain.contract import ContractCheck

from tools.only_imports_contract import OnlyImportsContract

ROOT = Path(__file__).resolve().parents[2]

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
for name in {packages}:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", []), name + "."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if error.name != "ray":  # an extra, which this project's own environment does not have
                    raise
print(sorted({{"torch", "triton", "transformers", "safetensors"}} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    "packages",
    [["server.startup.app"], ["executors.process.client"], ["engine"], ["server"]],
    ids=lambda p: p[0],
)
def test_the_serving_process_never_imports_torch(packages: list[str]) -> None:
    code = IMPORT_EVERYTHING.format(packages=packages)
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"


def test_engine_core_needs_no_web_framework() -> None:
    code = IMPORT_EVERYTHING.format(packages=["engine"]) + "print('fastapi' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.split() == ["[]", "False"], run.stderr


@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"]], ids=" ".join)
def test_help_is_quick(words: list[str]) -> None:
    """CPU time, user and system, which a busy machine does not change much. The first run writes bytecode."""
    command = [str(Path(sys.executable).with_name("cohort")), *words]
    seconds = [_cpu_seconds(command) for _ in range(4)]
    assert statistics.median(seconds[1:]) < 0.5, seconds


def test_a_verb_imports_its_own_module_alone() -> None:
    code = (
        "import sys; from cohort_server import command_line\n"
        "command_line.application(['serve'])\n"
        "print(sorted(name for name in sys.modules if name.startswith(('clients', 'server.commands.'))))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert last_parts(run.stdout) == ["common", "options", "serve"], run


def last_parts(text: str) -> list[str]:
    """Last parts of the names that a program printed as a list."""
    return [name.rpartition(".")[2] for name in ast.literal_eval(text)]


def test_a_program_may_have_a_package_called_clients() -> None:
    code = (
        "import sys, types; sys.modules['clients'] = own = types.ModuleType('clients'); own.__path__ = ['/nowhere']\n"
        "from cohort_server import LLM; print(sys.modules['clients'] is own, LLM.__name__)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == "True LLM\n", run.stderr


def _cpu_seconds(command: list[str]) -> float:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def only_imports(*imports: tuple[str, str]) -> ContractCheck:
    graph = grimp.ImportGraph()
    for module in ("house", "house.wall", "house.door", "house.roof", "house.roof.tile"):
        graph.add_module(module)
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported)
    options = {"name": "walls", "modules": ["house.*"], "allowed": ["numpy"]}
    return OnlyImportsContract("walls", {}, options).check(graph, verbose=False)


def test_only_imports_contract_names_what_is_foreign() -> None:
    fine = [
        ("house.wall", "json"),
        ("house.wall", "numpy"),
        ("house.wall", "house.door"),
        ("house.wall", "house"),
    ]
    assert only_imports(*fine).kept
    assert only_imports(*fine, ("house.roof.tile", "torch")).kept
    broken = only_imports(*fine, ("house.wall", "house.roof"), ("house.door", "torch"))
    assert broken.metadata["foreign"] == [("house.door", "torch"), ("house.wall", "house.roof")]


def contract(name: str) -> dict[str, Any]:
    """Options of one of the project's contracts."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    [options] = [one for one in linter["contracts"] if one["name"] == name]
    return dict(options)


def check(kind: type[Any], name: str, *imports: tuple[str, str]) -> bool:
    """Whether a contract of the project is kept in a house of these modules, their packages and imports."""
    configure()
    graph = grimp.ImportGraph()
    for path in {module for pair in imports for module in pair}:
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            graph.add_module(".".join(parts[:end]))
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported)
    session = {"root_packages": ["server", "executors"]}
    return bool(kind(name, session, contract(name)).check(graph, verbose=False).kept)


def test_a_new_dialect_is_behind_the_wall() -> None:
    name, line = "dialects know nothing of each other", ("server.apis.dialects", "server.apis.toy")
    fine = (
        line,
        ("server.apis.dialects", "server.apis.chat"),
        ("server.apis.toy.routes", "server.apis.base.common"),
    )
    assert check(IndependenceContract, name, *fine)
    for crossing in (
        ("server.apis.toy.encode", "server.apis.chat.encode"),
        ("server.apis.chat", "server.apis.toy.schema"),
        ("server.apis.base.common", "server.apis.toy"),
        ("server.apis.toy", "server.apis.dialects"),
    ):
        assert not check(IndependenceContract, name, *fine, crossing), crossing


def test_a_new_device_is_behind_the_wall() -> None:
    name = "rooms name no device"
    fine = (
        ("executors.llm.device.toy", "executors.llm.device.base"),
        ("executors.llm.step.runner", "executors.llm.device.ranges"),
        ("executors.llm.step.forward", "executors.llm.device.table"),
    )
    assert check(ForbiddenContract, name, *fine)
    for importer in ("executors.llm.step.forward", "executors.registry", "executors.llm.device.table"):
        assert not check(ForbiddenContract, name, *fine, (importer, "executors.llm.device.toy")), importer


@pytest.mark.parametrize("package", ["server", "server.remote", "clients", "engine", "executors.llm"])
def test_every_room_has_a_layer(package: str) -> None:
    """A folder that is in no layer may import everything."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    [rooms] = [one for one in linter["contracts"] if one.get("containers") == [package]]
    assert rooms["type"] == "layers" and rooms["exhaustive"] is True
