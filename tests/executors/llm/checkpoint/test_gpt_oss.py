"""The experts of gpt-oss in the forms of its checkpoints: all in one tensor, gate and up in alternation, in MXFP4, apart."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError, LogitsMode, PrefillInput, Tensor
from executors.contract.config import ExecutorAttentionConfig
from executors.llm.checkpoint.files import Checkpoint
from executors.llm.checkpoint.weights import settle_config
from executors.llm.executor import LlmExecutor
from executors.llm.finite import not_finite
from executors.llm.kernel_support import stored_support
from executors.llm.model.config import parse_config, read_config
from executors.llm.tools import compare
from executors.llm.tools.describe import describe
from executors.llm.tools.wide_copy import write_wide_copy
from tests.executors.gguf_files import converted_checkpoint, prepared, sizes, write_gguf
from tests.executors.llm.checkpoint.gpt_oss_files import FILE, SCHEME, apart, in_mxfp4
from tests.executors.llm.checkpoint.test_fp8_weights import distance
from tests.executors.llm.driver import config, start
from tests.executors.llm.models import Reference

PUBLISHED = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True, "experts_per_token": 4,
    "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072, "num_attention_heads": 64,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
    "output_router_logits": False, "quantization_config": SCHEME, "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": False, "vocab_size": 201088,
}  # fmt: skip
"""config.json of the 20B model, as far as the decoder is concerned."""
IDS = [(31 * i * i + 7 * i) % 200 for i in range(60)]
"""Longer than the window."""


async def logits(path: Path, backend: str = "auto") -> tuple[torch.Tensor, LlmExecutor]:
    """[T, vocabulary] of IDS."""
    executor = await start(
        path, dtype="float32", attention=ExecutorAttentionConfig(block_size=4, backend=backend)
    )
    output = await executor.prefill(PrefillInput(Tensor.of([IDS], "int32"), logits=LogitsMode.ALL))
    assert output.logits is not None
    return torch.from_numpy(output.logits.numpy().copy()).view(len(IDS), -1), executor


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    return in_mxfp4(tmp_path_factory.mktemp("gpt-oss"))


def test_config_as_published() -> None:
    found = parse_config(PUBLISHED)
    assert found.moe is not None and found.notes == ()
    assert [layer.window for layer in found.layers] == [128, None] * 12
    assert (found.moe.num_experts, found.moe.top_k, found.moe.intermediate_size) == (32, 4, 2880)
    assert (found.moe.biased, found.moe.softmax_last, found.moe.alpha, found.moe.limit) == (
        True,
        True,
        1.702,
        7.0,
    )
    assert found.activation == "clamped_swiglu" and found.qkv_bias and found.o_bias and not found.tied
    [rope] = found.ropes
    assert (rope.kind, rope.theta, rope.factor, rope.truncate) == ("yarn", 150000.0, 32.0, False)
    assert found.max_context_length == 131072
    assert found.integers is not None and found.integers.label == "mxfp4-pack-quantized"
    # Left out, these fields are the same.
    bare = {
        k: v
        for k, v in PUBLISHED.items()
        if k not in ("rope_scaling", "rope_theta", "layer_types", "head_dim")
    }
    assert parse_config(bare) == found


def test_tensors_are_divided_as_transformers_reads_them(
    checkpoints: tuple[Path, Reference], tmp_path: Path
) -> None:
    packed, reference = checkpoints
    exact = load_file(apart(reference.path, tmp_path / "apart") / FILE)
    for path, kind in ((packed, "MXFP4"), (reference.path, None)):
        checkpoint = Checkpoint(path)
        assert checkpoint.names() == set(exact)
        for name, expected in exact.items():
            ours, file = torch.empty(expected.shape), checkpoint.file_of(name)
            file.copy_into(name, ours)
            assert torch.equal(ours, expected), name
            if name.endswith("_proj.weight") and ".experts." in name:
                assert file.stored_kind(name) == kind
                rows = torch.cat([one for _, one in file.rows(name, turned=False)])
                assert torch.equal(rows, expected), name
                [(_, turned)] = file.rows(name, turned=True)
                assert torch.equal(turned, expected.T)
        checkpoint.close()
        assert not_finite(path) is None


async def test_logits_of_every_form(checkpoints: tuple[Path, Reference], tmp_path: Path) -> None:
    """MXFP4 beside the same numbers in float32: widened the same, kept up to the rounding of activations."""
    packed, reference = checkpoints
    expected, plain = await logits(reference.path)
    assert distance(expected, torch.from_numpy(reference.logits(IDS))) < 1e-5
    assert distance((await logits(apart(reference.path, tmp_path / "apart")))[0], expected) == 0.0
    widened, _ = await logits(packed, "torch")
    assert distance(widened, expected) < 1e-5
    ours, executor = await logits(packed)
    assert 5e-5 < distance(ours, expected) < 0.15
    assert executor.info().quantization == "MXFP4"
    needed = [one.capabilities().memory.parameter_memory for one in (executor, plain)]
    assert needed[0] < 0.45 * needed[1]
    facts = describe(config(packed))
    assert facts["checkpoint"]["problem"] is None


def test_what_is_not_as_published_is_refused_by_its_name(
    checkpoints: tuple[Path, Reference], tmp_path: Path
) -> None:
    packed, reference = checkpoints
    stored, wide = load_file(packed / FILE), load_file(reference.path / FILE)
    stem = "model.layers.1.mlp.experts"
    cases = {
        f"{stem}.gate_up_proj_blocks has shape [8, 96, 2, 16]; [8, 192, 2, 16] fits": (
            packed, {**stored, f"{stem}.gate_up_proj_blocks": stored[f"{stem}.gate_up_proj_blocks"][:, ::2].contiguous()},
        ),
        f"{stem}.gate_up_proj has shape [8, 192, 64]; [8, 64, 192] fits": (
            reference.path, {**wide, f"{stem}.gate_up_proj": wide[f"{stem}.gate_up_proj"].mT.contiguous()},
        ),
        f"{stem}.down_proj_scale_inv holds several weights in one in a form that is not supported": (
            reference.path, {**wide, f"{stem}.down_proj_scale_inv": torch.ones(8)},
        ),
        "model.layers.2.self_attn.sinks is missing": (
            reference.path, {name: one for name, one in wide.items() if name != "model.layers.2.self_attn.sinks"},
        ),
    }  # fmt: skip
    for i, (words, (source, tensors)) in enumerate(cases.items()):
        path = tmp_path / str(i)
        path.mkdir()
        shutil.copy(source / "config.json", path)
        save_file(tensors, path / FILE)
        assert words in str(describe(config(path))["checkpoint"]["problem"]), words


def test_blocks_without_a_claim_are_refused(checkpoints: tuple[Path, Reference], tmp_path: Path) -> None:
    packed, _ = checkpoints
    (tmp_path / FILE).symlink_to(packed / FILE)
    values = json.loads((packed / "config.json").read_text())
    del values["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    problem = str(describe(config(tmp_path))["checkpoint"]["problem"])
    assert "is missing; instead there are" in problem and "config.json needs a quantization_config" in problem


def test_activations_of_another_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="hidden_act 'gelu' is not supported; supported: silu"):
        parse_config({**PUBLISHED, "hidden_act": "gelu"})
    with pytest.raises(ConfigError, match=r"swiglu_limit is 0\.0; more than 0 is needed"):
        parse_config({**PUBLISHED, "swiglu_limit": 0})
    with pytest.raises(ConfigError, match=r"key 'group' .* is not known"):
        parse_config({**PUBLISHED, "quantization_config": {**SCHEME, "group": 16}})


def test_weights_that_are_wide_whatever_is_said(checkpoints: tuple[Path, Reference], tmp_path: Path) -> None:
    _, reference = checkpoints
    (tmp_path / FILE).symlink_to(reference.path / FILE)
    values = json.loads((reference.path / "config.json").read_text()) | {"quantization_config": SCHEME}
    (tmp_path / "config.json").write_text(json.dumps(values))
    settled = settle_config(read_config(tmp_path), tmp_path)
    assert settled.integers is None and "says mxfp4, but all weights are wide" in settled.notes[0]


def in_gguf(reference: Reference, folder: Path, kinds: Callable[[str], str] = lambda name: "F32") -> Path:
    """A directory with the checkpoint as a GGUF file."""
    one = apart(reference.path, folder / "apart")
    fields = json.loads((one / "config.json").read_text())
    rope = fields["rope_parameters"]
    metadata = {
        **sizes(fields), "expert_count": 8, "expert_used_count": 3, "attention.sliding_window": 17,
        "rope.freq_base": rope["rope_theta"], "rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
    }  # fmt: skip
    file = write_gguf(folder / "m.gguf", "gpt-oss", metadata, converted_checkpoint(one, "gpt-oss"), kinds)
    return prepared(folder / "p", file)


async def test_what_is_widened_is_said(
    checkpoints: tuple[Path, Reference], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts in MXFP4 take four times the memory where no kernel reads them: a GPU without Triton, torch's attention."""
    packed, reference = checkpoints
    gguf = in_gguf(reference, tmp_path, lambda name: "MXFP4" if "_exps" in name else "F32")
    for path, what in ((packed, "the checkpoint's mxfp4-pack-quantized"), (gguf, "the file's MXFP4")):
        _, executor = await logits(path, "torch")
        said = f"{what} weights were widened: attention backend torch is set"
        assert any(said in note for note in executor.status().notes), executor.status().notes
        _, executor = await logits(path)
        assert not any("were widened" in note for note in executor.status().notes)
    monkeypatch.setattr(stored_support.triton_build, "missing", lambda: "triton is not installed")
    assert stored_support.why_not(torch.device("cuda:0"), "auto") == "triton is not installed"


def test_a_wide_copy_of_a_file_is_the_checkpoint(checkpoints: tuple[Path, Reference], tmp_path: Path) -> None:
    """What `cohort verify` gives transformers of a GGUF file."""
    _, reference = checkpoints
    gguf = in_gguf(reference, tmp_path)
    (gguf / "tokenizer.json").write_text("{}")
    write_wide_copy(gguf, tmp_path / "copy")
    ours, theirs = load_file(tmp_path / "copy" / FILE), load_file(reference.path / FILE)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.long
def test_verify_compares_with_what_transformers_widens(checkpoints: tuple[Path, Reference]) -> None:
    packed, _ = checkpoints
    answer = compare.run(
        {
            "model": str(packed), "reference": str(packed), "dtype": "float32", "device": "cpu", "tolerance": None, "tokens": 4,
            "num_threads": 1, "has_tokenizer": False, "conversations": [], "texts": [], "prompts": [IDS, IDS[:5]],
        },
        lambda stage: None,
    )  # fmt: skip
    assert all(prompt["logits_equal"] and prompt["greedy_equal"] for prompt in answer["prompts"])
