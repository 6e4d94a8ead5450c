"""llama.cpp's file of a checkpoint with an MTP head, which its converter writes as a layer behind the model's last: the guesses
are those of the checkpoint in safetensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors.gguf.file import read_gguf
from tests.executors.gguf_files import prepared
from tests.executors.llm.models import SHAPES, write
from tests.executors.llm.spec.mtp_heads import with_head
from tests.executors.llm.spec.test_mtp_of_gguf import said
from tests.llamacpp.judge import converter, need_programs

pytestmark = [pytest.mark.external, pytest.mark.timeout(300)]


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3.5-moe-beside-images", "qwen3-next"])
async def test_guesses_of_a_converted_head(name: str, tmp_path: Path) -> None:
    need_programs()
    ref = write(*SHAPES[name], tmp_path / "model", len(name))
    one = with_head(ref, tmp_path / "checkpoint", apart=name == "qwen3-next")
    with converter(tmp_path) as convert:
        file = convert.convert(one.path, tmp_path / "m.gguf", "f32")
    metadata = read_gguf(file).metadata
    assert metadata[f"{metadata['general.architecture']}.nextn_predict_layers"] == 1
    assert await said(prepared(tmp_path / "served", file)) == await said(one.path)
