"""The MTP head of a GGUF file guesses what the head of the same checkpoint in safetensors guesses; one that cannot be used is
named, and its model is served without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from executors.contract import ConfigError
from executors.llm.executor import LlmExecutor
from executors.llm.model.config import read_config
from executors.llm.tools.describe import describe
from executors.llm.tools.wide_copy import write_wide_copy
from executors.testing.driver import Driver, Feed
from tests.executors.gguf_files import Tensors, converted_checkpoint, prepared, sizes, write_gguf
from tests.executors.hybrid_gguf import fields_of, qwen_metadata, qwen_tensors, with_head_of, write_hybrid
from tests.executors.llm.models import Reference
from tests.executors.llm.spec.mtp_heads import HeadReference, Heads
from tests.executors.llm.spec.test_mtp import config, drafts_of, driver_of, if_usable, prompt_of

ARCHITECTURES = {
    "qwen3.5": "qwen35",
    "qwen3.5-beside-images": "qwen35",
    "qwen3.5-wide": "qwen35",
    "qwen3.5-attention-alone": "qwen35",
    "qwen3.5-moe": "qwen35moe",
    "qwen3-next": "qwen3next",
}
LAYERS = 4
"""Number of layers of the models, and so of the head's layer in a file."""


def tensors_of(one: HeadReference, name: str) -> Tensors:
    return qwen_tensors(one.path, ARCHITECTURES[name])


def written(
    one: HeadReference, name: str, target: Path, tensors: Tensors, heads: int = 1, kinds: Any = lambda name: "F32"
) -> Path:  # fmt: skip
    """A directory that serves the file of these tensors."""
    fields = fields_of(one.path)
    recurrent = [kind == "linear_attention" for kind in fields["layer_types"]]
    metadata = with_head_of(qwen_metadata(fields, {"attention.recurrent_layers": recurrent}), heads)
    return write_hybrid(target, ARCHITECTURES[name], metadata, tensors, kinds)


async def said(path: Path) -> tuple[list[int], list[list[int]]]:
    """What a model says, and the guesses of its head step by step, most of which are wrong."""
    driver = await driver_of(path)
    seq = driver.add(prompt_of(37, 1))
    await driver.step(Feed(seq, 20, num_drafts=1))
    await driver.step(Feed(seq, num_drafts=3))
    drafts = []
    while len(seq.output) < 16:
        drafts.append(drafts_of(seq))
        await driver.step(Feed(seq, drafts=drafts[-1], num_drafts=3))
    return seq.output[:16], drafts


@pytest.mark.parametrize("name", ARCHITECTURES)
async def test_drafts_are_those_of_the_checkpoint_in_safetensors(
    name: str, head: Heads, tmp_path: Path
) -> None:
    """Also where the converter has put the value heads of the layers before into another order."""
    one = head(name, None)
    path = written(one, name, tmp_path, tensors_of(one, name))
    assert read_config(path).notes == () and len(read_config(path).layers) == LAYERS
    text, drafts = await said(path)
    assert (text, drafts) == await said(one.path)
    assert text == one.ref.greedy(prompt_of(37, 1), 16)
    assert drafts[0] == one.drafts([*prompt_of(37, 1), text[0]], 3)


async def test_a_quantized_head_stays_as_the_file_has_it(head: Heads, tmp_path: Path) -> None:
    """Its guesses are right as often as in float32: always, where the model's layers add nothing."""
    one = head("qwen3.5-wide", 0.0)
    tensors = tensors_of(one, "qwen3.5-wide")

    def kinds(name: str) -> str:
        return "Q8_0" if tensors[name].shape[-1] % 32 == 0 and name != "token_embd.weight" else "F32"

    path = written(one, "qwen3.5-wide", tmp_path, tensors, kinds=kinds)
    driver = await driver_of(path)
    companion = driver.executor._runtime.companion  # type: ignore[attr-defined]
    assert all(linear.stored == ("Q8_0",) * len(linear.stored) for linear in companion.runner.model.linears())
    assert all(linear.stored for linear in companion.runner.model.linears())
    seq, right = driver.add(prompt_of(30, 3)), 0
    await driver.step(Feed(seq, num_drafts=2))
    for _ in range(20):
        before = len(seq.output)
        await driver.step(Feed(seq, drafts=drafts_of(seq), num_drafts=2))
        right += len(seq.output) - before - 1
    assert right >= 30, "three of four guesses"


async def test_a_head_that_is_not_asked_for_is_left_out_with_a_note(head: Heads, tmp_path: Path) -> None:
    for name in ("qwen3.5", "qwen3.5-moe"):
        one = head(name, None)
        path = written(one, name, tmp_path / name, tensors_of(one, name))
        count = sum(name.startswith(f"blk.{LAYERS}.") for name in tensors_of(one, name))
        driver = await driver_of(path, mtp=False)
        assert not driver.executor.capabilities().drafts
        [note] = [note for note in driver.executor.status().notes if "MTP" in note]
        assert note.startswith(f"the MTP head ({count} tensors, nextn_predict_layers) is not used; --spec")
        assert describe(config(path, mtp=False))["warnings"] == [note]
        assert describe(config(path))["warnings"] == []
        seq = driver.add(prompt_of(20, 1))
        await driver.decode(4, seq)
        assert seq.output[:4] == one.ref.greedy(prompt_of(20, 1), 4)


NORM = torch.ones(48)
FAULTS: list[tuple[Tensors, list[str], int, str]] = [
    ({}, ["nextn.eh_proj.weight"], 1, r"tensor blk\.4\.nextn\.eh_proj\.weight is missing"),
    ({}, ["nextn.shared_head_norm.weight"], 1, r"tensor blk\.4\.nextn\.shared_head_norm\.weight is missing"),
    ({}, ["attn_q.weight", "ffn_down.weight"], 1, r"2 tensors \(blk\.4\.ffn_down\.weight, blk\.4\.attn_q\.weight\) are"),
    ({"blk.4.nextn.enorm.weight": torch.ones(47)}, [], 1, r"blk\.4\.nextn\.enorm\.weight has shape \[47\]"),
    ({"blk.4.nextn.embed_tokens.weight": torch.ones(8, 48)}, [], 1, r"nextn\.embed_tokens\.weight: .* embedding of its own"),
    ({"blk.4.nextn.shared_head_head.weight": torch.ones(8, 48)}, [], 1, r"nextn\.shared_head_head\.weight: .* lm_head of its"),
    ({"blk.4.nextn.other.weight": NORM}, [], 1, r"tensor blk\.4\.nextn\.other\.weight is not supported"),
    ({"blk.4.ssm_a": NORM}, [], 1, r"tensor blk\.4\.ssm_a is not supported"),
    ({"blk.5.attn_norm.weight": NORM}, [], 2, "the MTP head has 2 layers; heads of one layer are supported"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "without", "heads", "why"), FAULTS)
async def test_a_head_that_cannot_be_used_is_named_and_left_out(
    more: Tensors, without: list[str], heads: int, why: str, head: Heads, tmp_path: Path
) -> None:
    one = head("qwen3.5", None)
    tensors = {**tensors_of(one, "qwen3.5"), **more}
    for name in without:
        del tensors[f"blk.{LAYERS}.{name}"]
    path = written(one, "qwen3.5", tmp_path, tensors, heads)
    with pytest.raises(ConfigError, match=f"^mtp: .*{why}"):
        await LlmExecutor.from_config(config(path)).warmup()
    driver = await Driver.start(LlmExecutor.from_config(if_usable(path)))
    assert not driver.executor.capabilities().drafts
    [note] = [note for note in driver.executor.status().notes if "MTP" in note]
    assert note.startswith("the MTP head is not used: mtp: ") and str(tmp_path / "m.gguf") in note
    assert describe(if_usable(path))["warnings"] == [note]
    seq = driver.add(prompt_of(20, 1))
    await driver.decode(4, seq)
    assert seq.output[:4] == one.ref.greedy(prompt_of(20, 1), 4)


async def test_numbers_of_layers_that_fit_no_file_are_refused(head: Heads, tmp_path: Path) -> None:
    one = head("qwen3.5", None)
    tensors = tensors_of(one, "qwen3.5")
    with pytest.raises(ConfigError, match="nextn_predict_layers 5 is not supported; supported: less than"):
        fields = fields_of(one.path)
        metadata = {**qwen_metadata(fields, {}), "block_count": 5, "nextn_predict_layers": 5}
        await driver_of(write_hybrid(tmp_path / "all", "qwen35", metadata, tensors))
    alone = {name: one for name, one in tensors.items() if not name.startswith("blk.") or "blk.4." in name}
    with pytest.raises(ConfigError, match=r"the MTP head of a model .*, not the model"):
        await driver_of(written(one, "qwen3.5", tmp_path / "head", alone))


async def test_files_of_a_model_saved_without_its_head_say_so(
    reference: Callable[[str], Reference], tmp_path: Path
) -> None:
    ref = reference("qwen3.5")
    metadata = qwen_metadata(fields_of(ref.path), {"attention.recurrent_layers": [True, False, True, True]})
    path = write_hybrid(tmp_path, "qwen35", metadata, qwen_tensors(ref.path, "qwen35"))
    with pytest.raises(ConfigError, match=r"m\.gguf: there are no tensors blk\.\*\.nextn\.\*"):
        await driver_of(path)
    driver = await Driver.start(LlmExecutor.from_config(if_usable(path)))
    assert not any("MTP" in note for note in driver.executor.status().notes)


async def test_layers_that_guess_are_refused_of_architectures_without_heads(
    qwen3: Path, tmp_path: Path
) -> None:
    file = write_gguf(
        tmp_path / "m.gguf",
        "qwen3",
        {**sizes(fields_of(qwen3)), "nextn_predict_layers": 1},
        converted_checkpoint(qwen3, "qwen3"),
    )
    with pytest.raises(ConfigError, match=r"qwen3\.nextn_predict_layers 1 is not supported"):
        await driver_of(prepared(tmp_path / "served", file))


async def test_a_wide_copy_has_the_head(head: Heads, tmp_path: Path) -> None:
    """`cohort verify` writes one of a file, and transformers leaves the head out."""
    one = head("qwen3.5", None)
    write_wide_copy(written(one, "qwen3.5", tmp_path, tensors_of(one, "qwen3.5")), tmp_path / "copy")
    copied, original = (load_file(path / "model.safetensors") for path in (tmp_path / "copy", one.path))
    heads = [name for name in original if name.startswith("mtp.")]
    assert copied.keys() == original.keys() and len(heads) == 15
    for name in heads:
        torch.testing.assert_close(copied[name], original[name], rtol=1e-5, atol=1e-5)
