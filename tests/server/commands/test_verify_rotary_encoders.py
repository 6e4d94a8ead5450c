"""`cohort verify` on encoders with rotary positions, from safetensors and from GGUF."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.commands.verify import command as verb
from tests.executors.gguf_files import prepared
from tests.executors.llm.encoder.gguf_encoders import write_encoder
from tests.executors.llm.encoder.rotary_models import CONFIGS, made
from tests.server.commands.test_verify_encoders import compared, in_process


@pytest.mark.long
@pytest.mark.parametrize("family", [*CONFIGS])
def test_verify_finds_the_families_equal(tmp_path: Path, family: str) -> None:
    made(tmp_path / "hf", family)
    report = compared(tmp_path / "hf")
    assert report["equal"] and report["vectors"]["outcome"] == "equal", report
    path = write_encoder(tmp_path / "m.gguf", tmp_path / "hf")
    report = verb.compare(
        prepared(tmp_path / "gguf", path), tmp_path / "hf", verb.Options(num_threads=1), in_process
    )
    assert report["equal"] and report["vectors"]["outcome"] == "equal", report
