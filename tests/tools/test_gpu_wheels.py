"""Packages that gpu-check takes to machines without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.gpu_check import wheels
from tools.gpu_check.log import ROOT


def test_wheels_are_pinned_as_everything_else() -> None:
    pinned = wheels.pinned((ROOT / "constraints.txt").read_text())
    assert len(pinned) == len(wheels.NEEDED) and all("==" in line for line in pinned)
    with pytest.raises(ValueError, match="pins no version of msgspec"):
        wheels.pinned("setproctitle==1.0\n")


@pytest.mark.parametrize(
    ("wheel", "suiting"),
    [
        ("pytest-9.2.0-py3-none-any.whl", [(3, 11), (3, 12)]),
        ("sortedcontainers-2.4.0-py2.py3-none-any.whl", [(3, 11), (3, 12)]),
        ("msgspec-0.22.0-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", [(3, 12)]),
        ("tokenizers-0.23.3-cp310-abi3-manylinux_2_17_x86_64.whl", [(3, 11), (3, 12)]),
        ("later-1.0-cp312-abi3-manylinux_2_17_x86_64.whl", [(3, 12)]),
    ],
)
def test_which_wheels_suit(wheel: str, suiting: list[tuple[int, int]]) -> None:
    assert [python for python in ((3, 11), (3, 12)) if wheels.suits(wheel, python)] == suiting


@pytest.mark.parametrize("absent", ["pytest_asyncio", "xdist", "msgspec", ""])
def test_pytest_comes_with_all_its_plugins_or_not_at_all(
    absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin that is carried along may not fit a pytest that is there."""
    for name, module in wheels.NEEDED.items():
        with zipfile.ZipFile(tmp_path / f"{name.replace('-', '_')}-1.0-py3-none-any.whl", "w") as packed:
            packed.writestr(f"{module}/__init__.py", "")
    monkeypatch.setattr(
        wheels.importlib.util, "find_spec", lambda module: None if module == absent else module
    )
    family = [wheels.NEEDED[name] for name in wheels.FAMILY]
    assert {"pytest", "pluggy", "iniconfig", "pytest_asyncio", "pytest_timeout", "xdist", "execnet"} < set(
        family
    )
    assert "msgspec" not in family
    found = wheels.unpack_missing(tmp_path, tmp_path / "site")
    assert found == (family if absent in family else [absent] if absent else [])
    assert sorted(one.name for one in (tmp_path / "site").glob("*")) == sorted(found)


@pytest.mark.parametrize("absent", ["fastapi", "httptools"])
def test_fastapi_comes_with_what_it_stands_on(
    absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, module in wheels.NEEDED.items():
        with zipfile.ZipFile(tmp_path / f"{name.replace('-', '_')}-1.0-py3-none-any.whl", "w") as packed:
            packed.writestr(f"{module}/__init__.py", "")
    monkeypatch.setattr(
        wheels.importlib.util, "find_spec", lambda module: None if module == absent else module
    )
    found = set(wheels.unpack_missing(tmp_path, tmp_path / "site"))
    assert found == {wheels.NEEDED[name] for name in wheels.SERVER}
    assert {"fastapi", "starlette", "pydantic", "pydantic_core", "anyio", "typing_extensions"} <= found
    assert "pytest" not in found and "uvloop" not in found


ONLY_THOSE = """
import importlib.machinery, json, sys, sysconfig

class Refuses:
    "Finds nothing that is installed beside what gpu-check brings and what torch brings."

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        found = importlib.machinery.PathFinder.find_spec(top)
        places = (getattr(found, "origin", None) or "", *(getattr(found, "submodule_search_locations", None) or ()))
        if top not in ALLOWED and any(place.startswith(SITE) for place in places):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

SITE, ALLOWED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")), set(sys.argv[1].split())
sys.meta_path.insert(0, Refuses())
"""
OF_THE_MACHINE = {
    "torch",
    "torchgen",
    "functorch",
    "numpy",
    "triton",
    "safetensors",
    "yaml",
    "filelock",
    "fsspec",
    "sympy",
    "mpmath",
}


def alone(code: str, *without: str) -> subprocess.CompletedProcess[str]:
    """Run code with nothing but what a GPU's machine has and `gpu-wheels` brings, some of which may be left out."""
    allowed = ({*wheels.NEEDED.values()} | OF_THE_MACHINE) - set(without)
    return subprocess.run(
        [sys.executable, "-c", ONLY_THOSE + code, " ".join(allowed)], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


IMPORTS = """
import clients.http, server.startup.bootstrap, benchmarks.gpu.http_load
import httpx
"""


@pytest.mark.long
def test_the_server_needs_no_more_than_the_wheels() -> None:
    done = alone(IMPORTS)
    assert done.stderr.strip().splitlines()[-1] == "ModuleNotFoundError: No module named 'httpx'", done.stderr
    done = alone(IMPORTS, "uvicorn")
    assert "No module named 'uvicorn'" in done.stderr.strip().splitlines()[-1]


SERVES = """
from benchmarks.gpu import part, served
figures = {}
code, why = part.perform("benchmarks.gpu.served:run", part.Options("cpu", tiny=True, mode="inline"), figures.update)
print("\\n" + json.dumps({"code": code, "why": why, "figures": figures}))
"""


@pytest.mark.long(extended=True)
@pytest.mark.timeout(300)
def test_a_served_model_is_measured_with_no_more_than_the_wheels() -> None:
    done = alone(SERVES)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["code"], found["why"]) == (0, ""), done.stderr
    http, figures = found["figures"]["http"], found["figures"]
    assert (
        http["50/s"]["served"] == 6
        and http["50/s"]["output_tokens"] == 30
        and http["50/s"]["prompt_tokens"] == 48
    )
    wave = http["50/s"]
    assert 0 < wave["tpot_ms_p50"] <= wave["tpot_ms_p99"] and 0 < wave["ttft_ms_p50"] <= wave["ttft_ms_p99"]
    assert wave["tokens_per_s"] == pytest.approx(wave["requests_per_s"] * 5)
    assert figures["drafts_verified"] >= figures["drafts_accepted"] >= 0 and figures["drafts_verified"] > 0
    # One after the other, and other work may begin between them.
    assert figures["single_tokens_per_s"] > figures["grammar_alone_tokens_per_s"] / 8 > 0


def test_only_what_is_missing_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nobody_has_this", "msgspec"):
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl", "w") as packed:
            packed.writestr(f"{name}/__init__.py", "")
    monkeypatch.setattr(
        wheels, "NEEDED", {"nobody-has-this": "nobody_has_this", "msgspec": "msgspec", "x": "no_wheel"}
    )
    target = tmp_path / "site"
    assert wheels.unpack_missing(tmp_path, target) == ["nobody_has_this"]
    assert [one.name for one in target.iterdir()] == ["nobody_has_this"]
