"""`cohort verify FILE.gguf`: what the file holds, widened, beside transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from server.model_files.prepared import model_directory
from tests.small_gguf import write_small_gguf

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

COHORT = str(Path(sys.executable).with_name("cohort"))


def verify(folder: Path, *args: str) -> tuple[int, dict[str, dict[str, str]]]:
    done = subprocess.run(
        [COHORT, "verify", *args, "--tokens", "6", "--json"], cwd=folder, capture_output=True, text=True, timeout=110
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.long(extended=True)
def test_a_file_computes_what_transformers_computes(tmp_path: Path) -> None:
    code, report = verify(tmp_path, str(write_small_gguf(tmp_path / "small.gguf", "Q4_0")))
    assert code == 0, report
    assert [report[part]["outcome"] for part in ("templates", "token_ids", "logits", "greedy")] == [
        "equal"
    ] * 4


@pytest.mark.long(extended=True)
def test_another_base_of_the_rotation_is_seen(tmp_path: Path) -> None:
    write_small_gguf(tmp_path / "small.gguf")
    other = model_directory(write_small_gguf(tmp_path / "other.gguf", **{"rope.freq_base": 500.0}))
    code, report = verify(tmp_path, "small.gguf", "--reference", str(other))
    assert code == 1 and report["logits"]["outcome"] == "different"
