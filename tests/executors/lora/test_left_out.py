"""Tensors that an adapter has and the server leaves out: of parts that are not loaded, and embeddings that equal the model's."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError
from executors.gguf.file import read_gguf
from executors.llm.model.families import FAMILIES
from executors.lora import pack
from executors.lora.other_parts import PARTS, is_of_other_part
from executors.lora.peft import CONFIG, WEIGHTS
from tests.executors.gguf_files import write_gguf
from tests.executors.lora.peft_files import PREFIX, write_peft

Q = "model.layers.0.self_attn.q_proj"
VISION = "model.vision_tower.vision_model.encoder.layers.0.self_attn.q_proj"
EMBED, HEAD = f"{PREFIX}model.embed_tokens.weight", f"{PREFIX}lm_head.weight"


def add(folder: Path, tensors: dict[str, torch.Tensor], keep: bool = True, **config: object) -> Path:
    save_file((load_file(folder / WEIGHTS) if keep else {}) | tensors, folder / WEIGHTS)
    fields = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**fields, **config}))
    return folder


def packed_at(tmp_path: Path) -> Path:
    (tmp_path / "packed").mkdir(exist_ok=True)
    return tmp_path / "packed"


def pair(module: str) -> dict[str, torch.Tensor]:
    return {
        f"{PREFIX}{module}.lora_A.weight": torch.ones(4, 32),
        f"{PREFIX}{module}.lora_B.weight": torch.ones(32, 4),
    }


def test_every_part_that_a_family_leaves_out_is_known() -> None:
    patterns = {pattern for family in FAMILIES for pattern in family.names.other_parts}
    for pattern in patterns:
        assert any(fnmatchcase(f"model.{part}.layer.weight", pattern) for part in PARTS), pattern
    assert not is_of_other_part("model.layers.0.self_attn.q_proj") and not is_of_other_part(
        "transformer.h.0.attn.c_attn"
    )


@pytest.mark.parametrize(
    "module",
    [
        VISION,
        "vision_tower.vision_model.encoder.layers.0.mlp.fc1",
        "model.multi_modal_projector.linear_1",
        "model.audio_tower.layers.0.self_attn.q_proj",
        "visual.blocks.0.attn.qkv",
        "vision_language_adapter.w_in",
        "model.connector.modality_projection.proj",
    ],
)
def test_pairs_of_other_parts_change_nothing(tmp_path: Path, module: str) -> None:
    write_peft(tmp_path / "a", {Q: (32, 32)})
    plain = pack(tmp_path / "a", packed_at(tmp_path), 64)
    assert plain.notes == ()
    # A convolution's pair has four sizes.
    conv = {f"{PREFIX}model.vision_tower.patch_conv.lora_A.weight": torch.ones(4, 3, 2, 2)}
    found = pack(add(tmp_path / "a", {**pair(module), **conv}), packed_at(tmp_path), 64)
    assert found.digest == plain.digest
    part = next(one for one in module.split(".") if one in PARTS)
    assert len(found.notes) == 1 and part in found.notes[0] and found.notes[0].startswith("3 tensors for ")


def test_an_adapter_of_other_parts_alone_is_refused(tmp_path: Path) -> None:
    write_peft(tmp_path / "a", {Q: (32, 32)})
    add(tmp_path / "a", pair(VISION), keep=False)
    with pytest.raises(
        ConfigError,
        match=r"^/path/a/adapter_model.safetensors: nothing of it is for the text model: .*vision_tower",
    ):
        pack(tmp_path / "a", packed_at(tmp_path), 64, f"/path/a/{WEIGHTS}")


def base(
    tmp_path: Path, embed: torch.Tensor, head: torch.Tensor | None = None, prefix: str = "model."
) -> Path:
    (tmp_path / "base").mkdir(exist_ok=True)
    tensors = {f"{prefix}embed_tokens.weight": embed} | ({} if head is None else {"lm_head.weight": head})
    save_file(tensors, tmp_path / "base" / "model.safetensors")
    return tmp_path / "base"


def test_embeddings_that_equal_the_models(tmp_path: Path) -> None:
    write_peft(tmp_path / "a", {Q: (32, 32)})
    plain = pack(tmp_path / "a", packed_at(tmp_path), 64)
    embed, head = torch.randn(40, 32).bfloat16(), torch.randn(40, 32).bfloat16()
    for ours, theirs in (
        (torch.bfloat16,) * 2,
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32),
    ):
        folder = base(tmp_path, embed.to(theirs), head.to(theirs), "language_model.model.")
        add(
            tmp_path / "a",
            {EMBED: embed.to(ours), HEAD: head.to(ours)},
            modules_to_save=["embed_tokens", "lm_head"],
        )
        found = pack(tmp_path / "a", packed_at(tmp_path), 64, base=folder)
        assert found.digest == plain.digest and EMBED in found.notes[0] and HEAD in found.notes[0]


@pytest.mark.parametrize("wide", [torch.float32, torch.float16])
def test_embeddings_that_training_widened(tmp_path: Path, wide: torch.dtype) -> None:
    """What rounds to the model's numbers computes the same as they do."""
    write_peft(tmp_path / "a", {Q: (32, 32)})
    saved = torch.randn(40, 32).to(wide)
    folder = base(tmp_path, saved.bfloat16())
    assert not torch.equal(saved.float(), saved.bfloat16().float())
    assert pack(add(tmp_path / "a", {EMBED: saved}), packed_at(tmp_path), 64, base=folder).notes


def test_a_head_that_equals_a_tied_models_embedding(tmp_path: Path) -> None:
    write_peft(tmp_path / "a", {Q: (32, 32)})
    embed = torch.randn(40, 32)
    add(tmp_path / "a", {HEAD: embed, f"{PREFIX}model.embed_tokens.base_layer.weight": embed.clone()})
    assert pack(tmp_path / "a", packed_at(tmp_path), 64, base=base(tmp_path, embed)).notes


def test_embeddings_of_a_gguf_model(tmp_path: Path) -> None:
    write_peft(tmp_path / "a", {Q: (32, 32)})
    embed, head = torch.randn(40, 32), torch.randn(40, 32)
    folder = tmp_path / "base"
    folder.mkdir()
    for kind, why in (("F32", ""), ("Q8_0", "quantized")):
        path = folder / f"{kind}.gguf"
        write_gguf(
            path,
            "llama",
            {},
            {"token_embd.weight": embed, "output.weight": head},
            lambda name, kind=kind: kind,
        )
        (folder / "gguf.json").write_text(json.dumps({"files": [str(path)]}))
        assert read_gguf(path).tensors["output.weight"].type == kind
        add(tmp_path / "a", {EMBED: embed, HEAD: head})
        if not why:
            assert pack(tmp_path / "a", packed_at(tmp_path), 64, base=folder).notes
            continue
        with pytest.raises(ConfigError, match=why):
            pack(tmp_path / "a", packed_at(tmp_path), 64, base=folder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda one: one + (torch.arange(one.numel()).view_as(one) == one.numel() - 1) * 0.01,
            "differs from the model's",
        ),
        (lambda one: torch.cat([one, one[:1]]), r"has shape \[41, 32\], the model's \[40, 32\]"),
    ],
)
def test_embeddings_that_differ_are_refused(tmp_path: Path, change: object, why: str) -> None:
    write_peft(tmp_path / "a", {Q: (32, 32)})
    embed = torch.randn(40, 32)
    folder = base(tmp_path, embed)
    for name in (EMBED, HEAD):
        add(tmp_path / "a", {name: change(embed)}, keep=True)  # type: ignore[operator]
        with pytest.raises(ConfigError, match=f"{re.escape(name)} {why}: .*merge"):
            pack(tmp_path / "a", packed_at(tmp_path), 64, base=folder)
        write_peft(tmp_path / "a", {Q: (32, 32)})
    add(tmp_path / "a", {EMBED: embed})
    with pytest.raises(ConfigError, match="nothing in the model's files"):
        pack(tmp_path / "a", packed_at(tmp_path), 64)


def test_other_whole_modules_are_refused(tmp_path: Path) -> None:
    write_peft(tmp_path / "a", {Q: (32, 32)})
    folder = base(tmp_path, torch.randn(40, 32))
    add(tmp_path / "a", {f"{PREFIX}model.norm.weight": torch.ones(32)}, modules_to_save=["norm"])
    with pytest.raises(ConfigError, match="modules_to_save 'norm' is not supported"):
        pack(tmp_path / "a", packed_at(tmp_path), 64, base=folder)
    write_peft(tmp_path / "b", {Q: (32, 32)})
    projector = {f"{PREFIX}model.multi_modal_projector.linear_1.weight": torch.ones(4, 4)}
    add(tmp_path / "b", projector, modules_to_save=["multi_modal_projector"])
    assert "multi_modal_projector" in pack(tmp_path / "b", packed_at(tmp_path), 64, base=folder).notes[0]
