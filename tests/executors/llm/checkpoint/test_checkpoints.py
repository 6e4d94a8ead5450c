"""Loading: what works, and that each fault is one clear line."""

import asyncio
import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors import cgroup, registry
from executors.contract import ConfigError, ExecutorType, ParallelConfig, PrefillInput, Tensor, replace
from executors.contract.config import ExecutorAttentionConfig, ExecutorMemoryConfig, OptimizationConfig
from executors.llm.checkpoint import loader
from tests.executors.llm.driver import config, start

IDS = Tensor.of([[3, 1, 4, 1, 5, 9, 2, 6]], "int32")


async def logits_of(path: Path, **changes) -> np.ndarray:
    executor = await start(path, **changes)
    row = (await executor.prefill(PrefillInput(IDS))).last_token_logits()
    await executor.shutdown()
    return row


@pytest.fixture
def copy(qwen3, tmp_path) -> Path:
    """A checkpoint that a test may break."""
    return Path(shutil.copytree(qwen3, tmp_path / "broken"))


def change_config(path: Path, remove: tuple[str, ...] = (), **fields) -> None:
    values = json.loads((path / "config.json").read_text()) | fields
    (path / "config.json").write_text(json.dumps({k: v for k, v in values.items() if k not in remove}))


def change_tensors(path: Path, change) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file({k: v.contiguous() for k, v in tensors.items()}, path / "model.safetensors")


async def test_sharded_equals_single(reference, tmp_path):
    ref = reference("llama-biases-llama3-rope")
    ref.model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert np.array_equal(await logits_of(tmp_path), await logits_of(ref.path))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_a_tensor_that_is_not_finite_is_named(copy, value):
    name = "model.layers.1.mlp.down_proj.weight"
    change_tensors(copy, lambda tensors: tensors[name][2].fill_(value))
    with pytest.raises(
        ConfigError, match=rf"^{copy}/model.safetensors: tensor {name} has numbers that are not finite$"
    ):
        await start(copy)


async def test_finite_weights_whose_numbers_grow_beyond_all_bounds(copy):
    """3.4e38 is the largest number: products with the last norm's outputs are beyond."""

    def grow(tensors):
        tensors["model.norm.weight"].fill_(3e38)
        tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]).mul_(1000)

    change_tensors(copy, grow)
    with pytest.raises(
        ConfigError, match=r"its weights are finite, but the model's logits are not .* try another --dtype"
    ):
        await start(copy)


@pytest.mark.parametrize("other", ["a-stale", "z-stale"])
async def test_of_two_copies_the_one_that_the_index_names_is_loaded(reference, tmp_path, other):
    """A file that comes first, and one that comes last, with a tensor of other values and one of another shape."""
    ref = reference("llama-biases-llama3-rope")
    path = Path(shutil.copytree(ref.path, tmp_path / "copy"))
    tensors = load_file(path / "model.safetensors")
    stale = {"model.norm.weight": tensors["model.norm.weight"] * 7}
    moved = "model.layers.0.input_layernorm.weight"
    stale |= {"model.layers.1.input_layernorm.weight": torch.ones(3), moved: tensors[moved].clone()}
    save_file(stale, path / f"{other}.safetensors")
    index = dict.fromkeys(tensors, "model.safetensors") | {moved: f"{other}.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert np.array_equal(await logits_of(path), await logits_of(ref.path))


async def test_old_field_names_mean_the_same(reference, tmp_path):
    ref = reference("llama-biases-llama3-rope")
    path = Path(shutil.copytree(ref.path, tmp_path / "old"))
    rope = json.loads((path / "config.json").read_text())["rope_parameters"]
    theta = rope.pop("rope_theta")
    rope["type"] = rope.pop("rope_type")
    change_config(
        path, ("rope_parameters", "dtype"), rope_theta=theta, rope_scaling=rope, torch_dtype="float32"
    )
    assert np.array_equal(await logits_of(path), await logits_of(ref.path))


async def test_casting_and_a_missing_dtype(copy, qwen3):
    change_config(copy, ("dtype", "torch_dtype"))
    executor = await start(copy)
    assert executor.info().dtype == "float32"  # as the weights are
    half = await logits_of(copy, dtype="float16")
    assert np.abs(half - await logits_of(qwen3)).max() < 0.1


async def test_harmless_surplus_tensors_are_ignored(copy, qwen3):
    def add(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(10)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    change_tensors(copy, add)
    assert np.array_equal(await logits_of(copy), await logits_of(qwen3))


async def test_dummy_weights_are_seeded_and_need_no_checkpoint(copy):
    (copy / "model.safetensors").unlink()
    first = await logits_of(copy, load_format="dummy", seed=1)
    assert np.isfinite(first).all() and first.std() > 0
    assert np.array_equal(first, await logits_of(copy, load_format="dummy", seed=1))
    assert not np.array_equal(first, await logits_of(copy, load_format="dummy", seed=2))


async def test_progress_is_reported(qwen3):
    from executors.llm.executor import LlmExecutor

    executor, reports = LlmExecutor.from_config(config(qwen3)), []
    executor.set_progress(lambda *report: reports.append(report))
    await executor.warmup()
    weights = [r for r in reports if r[0] == "weights"]
    assert weights[-1][1] == weights[-1][2] == executor.info().num_parameters * 4
    assert [r[1] for r in weights] == sorted(r[1] for r in weights)
    assert ("warmup", 1, 1) in reports[reports.index(weights[-1]) :]


def _rename(tensors):
    tensors["model.layers.9.input_layernorm.weight"] = tensors.pop("model.norm.weight")


def _transpose(tensors):
    name = "model.layers.1.mlp.gate_proj.weight"
    tensors[name] = tensors[name].T


def _integers(tensors):
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)


def _file(name: str, content: bytes | None):
    def change(path: Path) -> None:
        if content is None:
            (path / name).unlink()
        else:
            (path / name).write_bytes(content)

    return change


def _cut(path: Path) -> None:
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def _header(text: str):
    return _file("model.safetensors", struct.pack("<Q", len(text)) + text.encode())


def _index(content: dict, then=None):
    def change(path: Path) -> None:
        (path / "model.safetensors.index.json").write_text(json.dumps(content))
        if then:
            then(path)

    return change


def _pickled(path: Path) -> None:
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def _of_config(*remove, **fields):
    return lambda path: change_config(path, remove, **fields)


def _of_rope(**fields):
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}
    return _of_config(rope_parameters={**rope, **fields})


def _of_tensors(change):
    return lambda path: change_tensors(path, change)


FAULTS = {
    "unknown architecture": (_of_config(architectures=["GrokForCausalLM"]), ["GrokForCausalLM", "Qwen3ForCausalLM"]),
    "no architecture": (
        _of_config("architectures", "model_type"), ["config.json", "architectures", "LlamaForCausalLM"],
    ),
    "no config": (_file("config.json", None), ["config.json", "no such file"]),
    "broken config": (_file("config.json", b"{'"), ["config.json", "JSON"]),
    "config is a list": (_file("config.json", b"[]"), ["config.json", "object"]),
    "missing field": (_of_config("num_hidden_layers"), ["config.json", "num_hidden_layers"]),
    "field of a wrong type": (_of_config(hidden_size="48"), ["hidden_size", "positive integer"]),
    "field out of range": (_of_config(num_attention_heads=0), ["num_attention_heads", "positive"]),
    "heads do not divide": (_of_config(num_key_value_heads=4), ["num_attention_heads 6", "num_key_value_heads 4"]),
    "norm eps": (_of_config("rms_norm_eps"), ["rms_norm_eps"]),
    "switch": (_of_config(attention_bias="yes"), ["attention_bias", "true or false"]),
    "activation": (_of_config(hidden_act="gelu"), ["hidden_act", "silu"]),
    "sliding window": (
        _of_config(use_sliding_window=True, sliding_window=-1, max_window_layers=0, layer_types=None),
        ["sliding_window is -1", "positive"],
    ),
    "first sliding layer": (
        _of_config(use_sliding_window=True, sliding_window=8, max_window_layers="two", layer_types=None),
        ["max_window_layers", "integer"],
    ),
    "layer types": (
        _of_config(use_sliding_window=True, sliding_window=8, layer_types=["chunked_attention"] * 3),
        ["layer_types", "chunked_attention", "sliding_attention"],
    ),
    "too few layer types": (
        _of_config(use_sliding_window=True, sliding_window=8, layer_types=["full_attention"]),
        ["layer_types", "a list of 3 str"],
    ),
    "rope kind": (_of_config(rope_parameters={"rope_type": "mrope"}), ["mrope", "llama3"]),
    "rope field": (_of_config(rope_parameters={"rope_type": "llama3"}), ["rope_parameters", "factor"]),
    "rope is not finite": (_of_rope(factor=float("inf")), ["rope_parameters: factor", "finite"]),
    "rope is too large": (_of_rope(factor=10**400), ["rope_parameters: factor", "finite"]),
    "rope base": (_of_rope(rope_theta=1), ["rope_theta", "more than 1"]),
    "rope correction": (_of_rope(beta_fast=0), ["rope_parameters: beta_fast", "more than 0"]),
    "rope attention": (_of_rope(attention_factor=-1), ["rope_parameters: attention_factor", "more than 0"]),
    "rope mscale": (_of_rope(mscale=-50, mscale_all_dim=1), ["rope_parameters: mscale", "at least 0"]),
    "rope is a list": (_of_config(rope_parameters=[1]), ["rope_parameters", "object"]),
    "dtype": (_of_config(dtype="float8"), ["dtype", "float8", "bfloat16"]),
    "quantization": (_of_config(quantization_config={"quant_method": "aqlm"}), ["quantization_config", "aqlm"]),
    "missing and surplus": (_of_tensors(_rename), ["model.norm.weight", "missing"]),
    "missing many": (_of_config(num_hidden_layers=5), ["22 tensors", "model.layers.3", "missing"]),
    "wrong shape": (_of_tensors(_transpose), ["gate_proj", "[48, 72]", "[72, 48]"]),
    "wrong vocabulary": (_of_config(vocab_size=212), ["embed_tokens", "[211, 48]", "[212, 48]"]),
    "integer weights": (_of_tensors(_integers), ["model.norm.weight", "I8", "BF16"]),
    "truncated": (_cut, ["model.safetensors", "truncated"]),
    "empty": (_file("model.safetensors", b""), ["model.safetensors"]),
    "only a length": (_file("model.safetensors", b"\xff" * 8), ["model.safetensors", "truncated"]),
    "pointer": (_file("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:1"),
                ["model.safetensors: not a safetensors file", "it is a Git LFS pointer in place of the file: git lfs pull"]),
    "garbage": (_file("model.safetensors", b"hello world, this is no header"), ["not a safetensors file"]),
    "header no JSON": (_header("{nonsense}"), ["corrupt safetensors header"]),
    "header no object": (_header("[1, 2]"), ["corrupt safetensors header"]),
    "header without offsets": (_header('{"a": {"dtype": "F32", "shape": [1]}}'), ["corrupt", "data_offsets"]),
    "header with a bad shape": (
        _header('{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}'), ["corrupt", "natural"],
    ),
    "header with a bad size": (
        _header('{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 0]}}'), ["corrupt", "size of a"],
    ),
    "pickled": (_pickled, ["pickled", "safetensors"]),
    "no weights": (_file("model.safetensors", None), ["no weights", "safetensors"]),
    "missing shard": (
        _index({"weight_map": {"a": "model-00001-of-00002.safetensors"}}, _file("model.safetensors", None)),
        ["model-00001-of-00002", "no such file"],
    ),
    "index without a map": (_index({}), ["index.json", "weight_map"]),
    "index leads elsewhere": (_index({"weight_map": {"a": "../x.safetensors"}}), ["index.json", "../x.safetensors"]),
    "index names a tensor that is not there": (
        _index({"weight_map": {"model.norm.weight": "model.safetensors"}}, _of_tensors(_rename)),
        ["tensor model.norm.weight", "index.json"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_is_one_clear_line(copy, fault):
    change, words = FAULTS[fault]
    change(copy)
    with pytest.raises(ConfigError) as caught:
        await start(copy)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("field", [
    "rope_theta", "original_max_position_embeddings", "factor", "low_freq_factor", "high_freq_factor", "attention_factor",
    "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "truncate", "rope_type",
])  # fmt: skip
@pytest.mark.parametrize("value", ["x", [1], {}])
def test_a_rope_field_of_a_wrong_type_is_named(copy, field, value):
    _of_rope(**{field: value})(copy)
    with pytest.raises(ConfigError, match=r"config\.json: rope_parameters") as caught:
        registry.create(config(copy))
    assert (field in str(caught.value) or field == "rope_type") and repr(value) in str(caught.value)


@pytest.mark.parametrize(("changes", "words"), [
    ({"max_num_seqs": 40_000, "max_model_len": 500_000, "kv_bytes": 1 << 30},
     ["max_num_seqs 40000", "160064 slots", "400,", "8,589,934,592", "smaller max_num_seqs"]),
    ({"max_num_seqs": 60_000}, ["max_num_seqs 60000", "101,280,000 bytes", "50,000,000", "smaller max_num_seqs"]),
    ({"max_num_batched_tokens": 10**7}, ["max_num_batched_tokens 10000000", "50,000,000", "smaller max_num_batched"]),
])  # fmt: skip
async def test_what_memory_does_not_allow_names_the_setting_at_fault(copy, monkeypatch, changes, words):
    monkeypatch.setattr("executors.llm.memory.sizing.machine_bytes", lambda: 8 << 30)
    monkeypatch.setattr(
        "executors.llm.memory.kv_plan.memory_limit", lambda: cgroup.MemoryLimit(8 << 30, 50_000_000)
    )
    change_config(copy, max_position_embeddings=500_000)
    if "kv_bytes" not in changes:
        changes = {"max_model_len": 64, "memory": ExecutorMemoryConfig(), **changes}
    with pytest.raises(ConfigError) as caught:
        await start(copy, **changes)
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message


async def test_tables_that_the_system_refuses_name_the_setting(qwen3, monkeypatch):
    def refuse(*_):
        raise MemoryError

    monkeypatch.setattr("executors.llm.assembly.parts.SequenceStates", refuse)
    with pytest.raises(ConfigError, match="max_num_seqs 16: tables for 128 slots of 512 tokens"):
        await start(qwen3)


def ranked(**changes):
    """Changes of a configuration for two ranks."""
    return {"parallel": ParallelConfig(2), "executor_type": ExecutorType.TENSOR_PARALLEL, **changes}


@pytest.mark.parametrize(("changes", "words"), [
    ({"max_num_seqs": 1_000_000}, ["max_num_seqs", "1000000", "65536"]),
    ({"max_num_batched_tokens": 1 << 31}, ["max_num_batched_tokens", "2147483648"]),
    ({"max_model_len": 513}, ["max_model_len 513", "512", "config.json"]),
    ({"dtype": "int4"}, ["dtype", "int4", "bfloat16"]),
    ({"load_format": "pt"}, ["load_format", "pt", "safetensors"]),
    ({"device": "tpu"}, ["device", "tpu", "cpu"]),
    ({"model": "/nonexistent"}, ["/nonexistent", "directory"]),
    ({"executor_type": ExecutorType.SPECULATIVE}, ["Speculative", "ContinuousBatch"]),
    ({"executor_type": ExecutorType.PIPELINE_PARALLEL}, ["PipelineParallel", "pipeline_parallel_size 1"]),
    ({"parallel": ParallelConfig(2)}, ["ContinuousBatch", "tensor_parallel_size 2"]),
    ({"parallel": ParallelConfig(1, 65)}, ["pipeline_parallel_size", "65", "64"]),
    (ranked(optimization=OptimizationConfig(deterministic=True)), ["tensor_parallel_size 2", "deterministic"]),
    (ranked(optimization=OptimizationConfig(draft_model="/d")), ["tensor_parallel_size 2", "draft model", "ngram"]),
    (ranked(optimization=OptimizationConfig(quantization="fp8")), ["tensor_parallel_size 2", "fp8", "int8"]),
    (ranked(memory=ExecutorMemoryConfig(kv_cache_dtype="fp8")), ["tensor_parallel_size 2", "fp8"]),
    ({"options": {"fast": True}}, ["fast"]),
    ({"max_num_seqs": 0}, ["max_num_seqs"]),
    ({"attention": ExecutorAttentionConfig(backend="magic")}, ["backend", "magic", "torch"]),
    ({"optimization": OptimizationConfig(quantization="awq")}, ["quantization", "awq", "leave the setting out"]),
    ({"optimization": OptimizationConfig(quantization="int3")}, ["quantization", "int3", "supported: int8, int4, fp8"]),
    ({"memory": ExecutorMemoryConfig(gpu_memory_utilization=1.5)}, ["gpu_memory_utilization"]),
])  # fmt: skip
def test_configurations_are_checked_before_anything_is_loaded(qwen3, changes, words):
    with pytest.raises(ConfigError) as caught:
        registry.create(replace(config(qwen3), **changes))
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words)


async def test_deterministic_is_refused_where_it_cannot_be(qwen3):
    attention = ExecutorAttentionConfig(backend="torch")
    asked = replace(config(qwen3), attention=attention, optimization=OptimizationConfig(deterministic=True))
    with pytest.raises(ConfigError, match="deterministic: needs Cohort's own kernels"):
        await registry.create(asked).warmup()


def test_what_a_gpu_takes_in_place_of_int8(qwen3):
    asked = replace(config(qwen3), optimization=OptimizationConfig(quantization="int8"))
    with pytest.raises(
        ConfigError, match=r"int8: needs Cohort's own kernels.*on cuda; take --quantization fp8"
    ):
        why = "the kernels are for CPUs, and this model is on cuda"
        loader.refuse_without_kernels(asked, torch.device("cuda"), why)


async def test_the_registry_makes_one(qwen3):
    executor = registry.create(config(qwen3))
    await executor.warmup()
    assert executor.info().family == "qwen3"
    await executor.warmup()
    await executor.shutdown()
    await executor.shutdown()


@pytest.mark.long(extended=True)
async def test_loading_takes_little_more_than_the_result(tmp_path):
    """In a process of its own: peak memory against what it was before, for 100 MB of weights in 25 MB shards."""
    fields = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 4096, "hidden_size": 512, "num_hidden_layers": 8,
        "num_attention_heads": 8, "intermediate_size": 1536, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "tie_word_embeddings": True, "dtype": "float32",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(fields))
    code = """
import sys, torch
from pathlib import Path
from executors.llm.model.config import read_config
from executors.llm.model.decoder import Decoder
from executors.llm.checkpoint.weights import fill_dummy, load_weights
from safetensors.torch import save_file
torch.set_num_threads(1)
path = Path(sys.argv[1])
make = lambda: Decoder(read_config(path), torch.float32, torch.device("cpu"))
quiet = lambda *report: None
if sys.argv[2] == "write":
    decoder = make()
    fill_dummy(decoder, 0, quiet)
    save_file({k: v.clone() for k, v in decoder.parameters().items()}, path / "model.safetensors")
else:
    def status(name):
        text = Path("/proc/self/status").read_text()
        return int(text.split(name + ":")[1].split()[0]) * 1024
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    decoder = make()
    load_weights(decoder, path, quiet)
    print((status("VmHWM") - before) / decoder.num_bytes())
"""

    async def run(mode: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, str(tmp_path), mode, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        assert process.returncode == 0
        return out.decode()

    await run("write")
    assert float(await run("read")) < 1.3
