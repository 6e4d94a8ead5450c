"""Packages that gpu-check takes to machines without a network."""

from __future__ import annotations

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
