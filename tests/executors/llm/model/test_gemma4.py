"""Gemma 4: which layers have which heads and whose KV, the table of layers' inputs in its file, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import (
    ConfigError,
    LogitsMode,
    OptimizationConfig,
    ParallelConfig,
    PrefillInput,
    Tensor,
)
from executors.llm.checkpoint.loader import load_model
from executors.llm.fused import cpu_forward, triton_forward
from executors.llm.lora.loaded import fit
from executors.llm.model.config import DecoderConfig, parse_config, read_config
from executors.llm.model.decoder import Decoder
from executors.llm.tools.describe import describe
from executors.lora import pack, read_adapter
from tests.executors.checkpoints import write_checkpoint, write_config
from tests.executors.gguf_files import converted_checkpoint, prepared, sizes, write_gguf
from tests.executors.llm.driver import Driver, config, start
from tests.executors.lora.peft_files import write_peft

TYPES = [f"{'full' if i in (2, 5, 7) else 'sliding'}_attention" for i in range(8)]
BASE: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "vocab_size": 130, "hidden_size": 64,
    "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "global_head_dim": 64,
    "intermediate_size": 96, "max_position_embeddings": 512, "sliding_window": 16, "layer_types": TYPES, "dtype": "float32",
    "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 130, "num_kv_shared_layers": 5,
    "use_double_wide_mlp": True,
}  # fmt: skip
METADATA: dict[str, Any] = {
    "attention.key_length": 64, "attention.value_length": 64, "attention.key_length_swa": 32, "attention.value_length_swa": 32,
    "rope.freq_base": 1_000_000.0, "rope.freq_base_swa": 10_000.0, "attention.sliding_window": 16,
    "attention.sliding_window_pattern": [one.startswith("sliding") for one in TYPES], "attention.shared_kv_layers": 5,
    "embedding_length_per_layer_input": 32, "feed_forward_length": [96] * 3 + [192] * 5,
}  # fmt: skip
IDS = [7 * i * i % 127 + 1 for i in range(45)]


def parsed(**fields: Any) -> DecoderConfig:
    return parse_config({**BASE, **fields})


def written(tmp_path: Path, **fields: Any) -> Path:
    return write_checkpoint(tmp_path / "model", {**BASE, **fields})


def gguf(
    hf: Path,
    folder: Path,
    kinds: Callable[[str], str] = lambda name: "F32",
    metadata: Any = None,
    **more: Any,
) -> Path:
    fields = json.loads((hf / "config.json").read_text())
    tensors = converted_checkpoint(hf, "gemma4") | {
        "rope_freqs.weight": torch.tensor([1.0] * 8 + [1e30] * 24),
        **more,
    }
    folder.mkdir()
    values = {**sizes(fields), **METADATA, **(metadata or {})}
    values = {name: value for name, value in values.items() if value is not None}
    return prepared(folder, write_gguf(folder / "m.gguf", "gemma4", values, tensors, kinds))


async def logits(path: Path, ids: list[int] = IDS, **changes: Any) -> np.ndarray:
    executor = await start(path, **changes)
    output = await executor.prefill(PrefillInput(Tensor.of([ids], "int32"), logits=LogitsMode.ALL))
    await executor.shutdown()
    return np.asarray(output.logits.numpy()[0])


def off(found: np.ndarray, expected: np.ndarray) -> float:
    return float(
        np.linalg.norm(found - expected) / np.linalg.norm(expected - expected.mean(-1, keepdims=True))
    )


# -- which layer has what ----------------------------------------------------------------------------------------------


def test_layers_have_the_heads_kv_and_widths_of_their_types() -> None:
    found = parsed(attention_k_eq_v=True, num_global_key_value_heads=1, num_kv_shared_layers=4)
    heads = [found.heads_of(layer) for layer in found.layers]
    assert [(one.num_kv_heads, one.head_dim) for one in heads] == [
        (1, 64) if one.startswith("full") else (2, 32) for one in TYPES
    ]
    assert [layer.kv_from for layer in found.layers] == [None] * 4 + [3, 2, 3, 2]
    assert [layer.inner for layer in found.layers] == [0] * 4 + [192] * 4
    assert [layer.k_is_v for layer in found.layers] == [one.startswith("full") for one in TYPES]
    assert [layer.window for layer in found.layers] == [
        None if one.startswith("full") else 16 for one in TYPES
    ]
    full, near = found.ropes
    assert (full.kind, full.dim, full.turning, full.theta) == ("proportional", 64, 8, 1_000_000.0)
    assert (near.kind, near.dim, near.theta) == ("default", 32, 10_000.0)
    assert found.score_scale == 1.0 and found.layer_input_size == 32


def test_the_number_of_key_heads_of_full_layers_counts_only_where_keys_are_values() -> None:
    found = parsed(num_global_key_value_heads=1)
    assert {found.heads_of(layer).num_kv_heads for layer in found.layers} == {2}


def test_sizes_of_single_layers_are_those_of_their_types() -> None:
    """transformers 5.23 saves a model so."""
    overrides = {str(i): {"head_dim": 64, "num_key_value_heads": 1} for i in (2, 5, 7)}
    own = parsed(attention_k_eq_v=True, per_layer_config=overrides, global_head_dim=None)
    assert own == parsed(attention_k_eq_v=True, num_global_key_value_heads=1)


def test_the_last_layer_sees_everything_whatever_its_type() -> None:
    found = parsed(layer_types=["full_attention", *["sliding_attention"] * 7], num_kv_shared_layers=0)
    assert found.layers[-1].window is None and found.layers[-1].heads is not None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"per_layer_config": {"2": {"head_dim": 40}}}, "gives layers of one type heads of 32, 40"),
        ({"per_layer_config": {"9": {"head_dim": 40}}}, "per_layer_config: 9 is not the number of a layer"),
        ({"per_layer_config": {"2": {"sliding_window": 4}}}, "has sliding_window; supported: head_dim, num_key_value_heads"),
        ({"per_layer_config": [1]}, "per_layer_config is '\\[1\\]'; an object is needed"),
        ({"per_layer_config": {"1": {"num_key_value_heads": 3}}}, "num_attention_heads 4 is not a multiple of 3 key heads"),
        ({"global_head_dim": 33}, "heads of 33 in some layers; rotary embeddings need an even size"),
        ({"num_kv_shared_layers": 8}, "num_kv_shared_layers 8 leaves layer 0 without a layer of its type"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers 6 leaves layer 2 without a layer of its type"),
        ({"num_kv_shared_layers": -1}, "num_kv_shared_layers is -1; a positive integer is needed"),
        ({"vocab_size_per_layer_input": 99}, "vocab_size_per_layer_input 99 is less than vocab_size 130"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all' is not supported"),
        ({"enable_moe_block": True}, "num_experts is missing"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "'yarn' is not supported; supported: default, prop"),
        ({"rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.01}}},
         "partial_rotary_factor 0.01 rotates 0 of 32 pairs"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parsed(**fields)


def test_inputs_of_layers_are_switched_off_by_zero() -> None:
    found = parsed(hidden_size_per_layer_input=0)
    assert (
        found.layer_input_size == 0
        and Decoder(found, torch.float32, torch.device("meta")).layer_inputs is None
    )


# -- the table in its file ---------------------------------------------------------------------------------------------


def _loaded(path: Path, **changes: Any) -> tuple[Decoder, int]:
    loaded = load_model(config(path, **changes), lambda *_: None)
    assert isinstance(loaded.model, Decoder)
    return loaded.model, loaded.parameter_bytes


TABLE_BYTES = 130 * 8 * 32 * 4


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_the_table_stays_in_its_file_and_takes_no_memory(tmp_path: Path, backend: str) -> None:
    path = written(tmp_path)
    attention = replace(config(path).attention, backend=backend)
    decoder, num_bytes = _loaded(path, attention=attention)
    assert decoder.row_table is not None and decoder.row_table.in_file and decoder.row_table.num_bytes == 0
    dummy, dummy_bytes = _loaded(path, attention=attention, load_format="dummy")
    assert dummy.row_table is not None and dummy.row_table.num_bytes == TABLE_BYTES
    assert dummy_bytes - num_bytes >= TABLE_BYTES
    assert decoder.num_parameters() == dummy.num_parameters(), "which counts what the file holds"
    facts = describe(config(path, attention=attention))
    decoder.prepare(1)  # as small as without, in the sketch
    assert facts["loaded_bytes"] == num_bytes and facts["parameters"] == decoder.num_parameters()


@pytest.mark.parametrize(
    "kind", ["Q4_0", *(pytest.param(one, marks=pytest.mark.long) for one in ("Q8_0", "F16"))]
)
async def test_rows_of_a_quantized_table_are_widened_one_by_one(tmp_path: Path, kind: str) -> None:
    """As in QAT files, whose table is in Q4_0 or more bits: the numbers are those of the table read as a whole."""
    hf = written(tmp_path)
    path = gguf(hf, tmp_path / "q", lambda name: kind if name.startswith("per_layer_token") else "F32")
    decoder, _ = _loaded(path, dtype="float32")
    assert decoder.row_table is not None and decoder.row_table.in_file
    found = await logits(path, dtype="float32")
    attention = replace(config(path).attention, backend="torch")
    whole = await logits(path, dtype="float32", attention=attention)
    assert np.abs(found - whole).max() < 1e-4
    assert 1e-6 < off(found, await logits(hf)) < (0.3 if kind == "Q4_0" else 0.03)


@pytest.mark.long
@pytest.mark.parametrize("form", ["Q4_0", "int8", "int4"])
async def test_logits_are_near_those_of_wide_weights(tmp_path: Path, form: str) -> None:
    hf = written(tmp_path)
    expected = await logits(hf)
    if form == "Q4_0":
        found = await logits(gguf(hf, tmp_path / "q", lambda name: form))
    else:
        found = await logits(hf, optimization=OptimizationConfig(num_threads=1, quantization=form))
    assert off(found, expected) < (0.1 if form == "int8" else 0.6)


def _resident(path: Path) -> int:
    """Bytes of a mapped file that are in this process's memory."""
    resident, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            resident += 1024 * int(line.split()[1])
    return resident


async def test_of_a_large_table_only_rows_become_memory(tmp_path: Path) -> None:
    """A file of 134 MB, nearly all of it the table, whose zeros take no space on the disk."""
    rows, columns = 65_536, 8 * 128
    fields = {
        **BASE,
        "vocab_size": rows,
        "vocab_size_per_layer_input": rows,
        "hidden_size_per_layer_input": 128,
    }
    write_config(tmp_path, {**fields, "dtype": "bfloat16"})
    decoder = Decoder(parse_config(fields), torch.bfloat16, torch.device("meta"))
    norms, header, at = decoder.head_norms(), {}, 0
    for name, tensor in decoder.parameters().items():
        shape = list(tensor.shape[1:] if name in norms else tensor.shape)
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file = tmp_path / "model.safetensors"
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.truncate(8 + len(text) + at)
    executor = await start(tmp_path, dtype="bfloat16")
    await executor.prefill(PrefillInput(Tensor.of([IDS], "int32")))
    mapped = _resident(file)
    await executor.shutdown()
    assert 0 < mapped < 2 * rows * columns / 4


# -- files -------------------------------------------------------------------------------------------------------------


async def test_tensors_of_layers_that_read_the_kv_of_others_are_left_out(tmp_path: Path) -> None:
    """Checkpoints as published have keys and values for them."""
    hf = written(tmp_path)
    expected = await logits(hf)
    tensors = load_file(hf / "model.safetensors")
    tensors["model.layers.7.self_attn.k_proj.weight"] = torch.ones(128, 64)
    save_file(tensors, hf / "model.safetensors")
    assert np.array_equal(await logits(hf), expected)
    loaded = load_model(config(hf), lambda *_: None)
    assert "model.layers.7.self_attn.k_proj.weight is not used" in loaded.warnings[-1]
    path = gguf(written(tmp_path / "own"), tmp_path / "g", **{
        "blk.7.attn_k.weight": torch.ones(128, 64), "blk.7.attn_v.weight": torch.ones(128, 64),
        "blk.7.attn_k_norm.weight": torch.ones(64),
    })  # fmt: skip
    assert np.array_equal(await logits(path), expected)


@pytest.mark.parametrize(
    ("metadata", "more", "message"),
    [
        ({"attention.shared_kv_layers": 4, "feed_forward_length": 96}, {}, "shared_kv_layers 4 is not supported; supported: a"),
        ({"feed_forward_length": [96] * 7 + [192]}, {}, "feed_forward_length .* is not supported; supported: 96 in all"),
        ({"attention.sliding_window_pattern": [True] * 8}, {}, "supported: false for the last layer"),
        ({"attention.sliding_window_pattern": [True] * 7}, {}, "a list of 8 bool is needed"),
        ({"rope.dimension_count": 32}, {}, "rope.dimension_count 32 is not supported; supported: 64"),
        ({"rope.scaling.type": "yarn"}, {}, "rope.scaling.type yarn is not supported"),
        ({"rope.scaling.factor": 2.0}, {}, "rope.scaling.factor 2.0 is not supported"),
        ({}, {"rope_freqs.weight": torch.full((32,), 1.5)}, "has other numbers than 1"),
        ({"attention.head_count_kv": [2] * 7 + [0]}, {}, "head_count_kv is .*; positive integers are needed"),
    ],
)  # fmt: skip
def test_metadata_that_llama_cpp_computes_otherwise_are_refused(
    tmp_path: Path, metadata: dict[str, Any], more: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_model(
            config(gguf(written(tmp_path), tmp_path / "g", metadata=metadata, **more)), lambda *_: None
        )


def test_a_file_without_the_theta_of_windows_means_that_of_llama_cpp(tmp_path: Path) -> None:
    """A constant there, whatever the theta of the other layers is."""
    path = gguf(
        written(tmp_path), tmp_path / "g", metadata={"rope.freq_base_swa": None, "rope.freq_base": 5e5}
    )
    assert [rope.theta for rope in read_config(path).ropes] == [5e5, 10_000.0]


def test_suppressed_tokens_have_a_note(tmp_path: Path) -> None:
    hf = written(tmp_path)
    path = gguf(hf, tmp_path / "g", metadata={"tokenizer.ggml.suppress_tokens": [5, 6]})
    assert any(
        "suppress_tokens: 2 tokens" in note for note in load_model(config(path), lambda *_: None).warnings
    )


async def test_windows_longer_than_the_context_change_nothing(tmp_path: Path) -> None:
    """Each size of heads keeps its blocks, although both types of layers see everything then."""
    path = written(tmp_path)
    executor = await start(path, max_model_len=12)
    assert [group.window for group in executor.kv_layout().groups] == [16, None]
    await executor.begin_epoch(1)
    driver = Driver(executor)
    found = await driver.generate([driver.add(IDS[:5])], 7, 3)
    await executor.shutdown()
    text = IDS[:5]
    for _ in range(7):
        text.append(int((await logits(path, ids=text))[-1].argmax()))
    assert found == [text[5:]]


# -- what computes it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
        {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 3, "moe_intermediate_size": 20},
    ],
    ids=["shared-kv", "keys-that-are-values", "experts"],
)
async def test_one_call_computes_the_layers_on_a_cpu(tmp_path: Path, fields: dict[str, Any]) -> None:
    """The logits are those of torch around the kernels, whose own are compared with transformers."""
    path = written(tmp_path, **fields)
    executor = await start(path)
    assert executor._runtime is not None
    model = executor._runtime.runner.model
    assert isinstance(model, Decoder) and model.fused and cpu_forward.why_not(model) is None
    assert any("layers: in one call" in note for note in executor.status().notes)
    calls: list[int] = []
    fused = model._fused
    assert fused is not None

    class Counting:
        def takes(self, attend: Any) -> bool:
            return fused.takes(attend)

        def __call__(self, inputs: Any) -> torch.Tensor:
            calls.append(len(inputs.token_ids))
            return fused(inputs)

    model.fuse(Counting())
    asked = PrefillInput(Tensor.of([IDS], "int32"), logits=LogitsMode.ALL)
    found = np.asarray((await executor.prefill(asked)).logits.numpy()[0])
    assert sum(calls) >= len(IDS), "attention over two sizes of heads is the call's own"
    await executor.shutdown()
    attention = replace(config(path).attention, backend="torch")
    assert np.abs(found - await logits(path, attention=attention)).max() < 1e-4


def test_gpus_compute_the_layers_around_their_kernels(tmp_path: Path) -> None:
    decoder, _ = _loaded(written(tmp_path))
    assert triton_forward.why_not(decoder) == "heads of different sizes"


@pytest.mark.parametrize("parallel", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_ranks_refuse_the_family_by_name(tmp_path: Path, parallel: dict[str, int]) -> None:
    with pytest.raises(
        ConfigError, match="layers of gemma4 have heads of different sizes, inputs, and KV of other"
    ):
        ranks = ParallelConfig(**parallel)
        describe(config(written(tmp_path), parallel=ranks, executor_type=ranks.executor_type))


@pytest.mark.parametrize(
    ("name", "shape", "why"),
    [
        ("model.layers.7.self_attn.q_proj", (256, 64), None),
        ("model.layers.0.self_attn.v_proj", (64, 64), None),
        ("model.layers.7.mlp.gate_proj", (192, 64), None),
        ("model.layers.7.self_attn.k_proj", (128, 64), "no such weight"),
        ("model.layers.2.self_attn.v_proj", (128, 64), "no such weight"),
        ("model.layers.0.per_layer_input_gate", (32, 64), "adapters of this weight are not supported"),
        ("model.per_layer_model_projection", (256, 64), "adapters of this weight are not supported"),
        ("model.embed_tokens_per_layer", (130, 256), "adapters of this weight are not supported"),
    ],
)
def test_adapters_fit_the_weights_that_layers_have(
    tmp_path: Path, name: str, shape: tuple[int, int], why: str | None
) -> None:
    decoder = Decoder(parsed(attention_k_eq_v=True), torch.float32, torch.device("meta"))
    (tmp_path / "packed").mkdir()
    write_peft(tmp_path / "adapter", {name: shape})
    file = read_adapter(pack(tmp_path / "adapter", tmp_path / "packed", 64).path)
    if why is None:
        assert set(fit(decoder, file).places) == {name}
        return
    with pytest.raises(ConfigError, match=why):
        fit(decoder, file)
