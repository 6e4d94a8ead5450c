"""The list of launches that may spill registers: a launch that is not on it is named, and `tests.gpu.compiled` fails."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.gpu import compiled
from tests.gpu.compiled import Compiled, spills

CASES = ["Qwen3-8B", "64 / 1, fp16"]


def one(kernel: str = "_extend_kernel", spilled: int = 8) -> Compiled:
    return Compiled(kernel, "bf16", {"TILE": 64}, 8, 2, list(CASES), 1.0, 255, spilled)


def test_a_launch_that_spills_is_named() -> None:
    assert spills([one(spilled=0)], 90) == []
    assert spills([one(spilled=0), one()], 90) == [
        "_extend_kernel [bf16] spills 8 bytes for sm_90: Qwen3-8B, 64 / 1, fp16"
    ]


def test_a_launch_on_the_list_may_spill_as_much_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compiled.SPILLED, (90, "_extend_kernel", CASES[1]), 8)
    assert spills([one()], 90) == []
    assert (
        len(spills([one(spilled=16)], 90))
        == len(spills([one()], 80))
        == len(spills([one("_split_kernel")], 90))
        == 1
    )


def test_the_command_fails_behind_its_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, found = tmp_path / "found.json", [one()]
    monkeypatch.setattr(compiled, "record", lambda target: [])
    monkeypatch.setattr(compiled, "compile_all", lambda *_: found)
    with pytest.raises(SystemExit, match="spills 8 bytes for sm_90"):
        compiled.main(["--json", str(path)])
    assert str(asdict(found[0])["spilled"]) in capsys.readouterr().out and '"spilled": 8' in path.read_text(
        "utf-8"
    )
    found[:] = [one(spilled=0)]
    compiled.main(["--json", str(path)])
