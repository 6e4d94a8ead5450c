"""`cohort info` says what the server says once it has loaded the model."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from engine.text.tokenizer import Tokenizer
from executors.cgroup import MemoryLimit
from executors.contract import (
    BATCH_LIMITS,
    ConfigError,
    ExecutorConfig,
    ExecutorMemoryConfig,
    OptimizationConfig,
)
from executors.contract.config import ExecutorAttentionConfig
from executors.llm.executor import LlmExecutor
from executors.llm.memory import kv_plan
from executors.llm.model.caches import kv_group
from executors.llm.tools import describe
from executors.tiny import weights_dir
from server.commands import info as verb
from server.commands.common import as_bytes, count, size
from tests.executors.checkpoints import QWEN3, write_checkpoint
from tests.executors.llm.models import build
from tests.tiers import sweep
from tests.tiny_model import BYTES_PER_TOKEN

SHAPES = (
    "qwen3-tied-gqa", "llama-biases-llama3-rope", "llama-dynamic-rope", "mistral-window",
    "qwen3-moe-some-dense-layers", "gemma2-caps-alternating-windows", "gemma3-two-ropes", "phi3-longrope", "olmo2",
    "gpt2", "gemma3-beside-images", "ministral3-growing-queries", "qwen2-moe-windows-some-dense-layers",
    "gemma4-inputs-of-layers-and-shared-kv", "gemma4-experts-beside-mlp",
)  # fmt: skip


def config(model: Path, **changes: Any) -> ExecutorConfig:
    return ExecutorConfig(
        "llm", str(model), max_num_seqs=8, max_num_batched_tokens=64, device="cpu",
        optimization=OptimizationConfig(num_threads=1), **changes,
    )  # fmt: skip


@pytest.mark.parametrize(("given", "tokens"), [((), 64), (BATCH_LIMITS, 1024)], ids=["set", "default"])
async def test_the_largest_step_is_the_executors(tmp_path: Path, given: tuple[str, ...], tokens: int) -> None:
    """By default it follows the host's threads."""
    build("olmo2", tmp_path)
    threads, most = OptimizationConfig(num_threads=2), 2048 if given else 64
    chosen = replace(
        config(tmp_path), default_limits=given, max_num_batched_tokens=most, optimization=threads
    )
    real = LlmExecutor.from_config(chosen)
    await real.warmup()
    assert describe.describe(chosen)["max_num_batched_tokens"] == tokens
    assert real.capabilities().max_batched_tokens == tokens


async def loaded(chosen: ExecutorConfig) -> Any:
    """What the executor holds after warmup."""
    executor = LlmExecutor.from_config(chosen)
    await executor.warmup()
    return executor._runtime


def agree(facts: dict[str, Any], real: Any) -> None:
    """Assert that every number is the executor's."""
    plan, memory = real.plan, facts["memory"]
    assert memory["problem"] is None
    assert (memory["block_size"], memory["num_blocks"]) == (plan.layout.block_size, plan.layout.num_blocks)
    groups = [(group.window, group.num_blocks, group.bytes_per_block) for group in plan.layout.groups]
    assert [tuple(group.values()) for group in memory["groups"]] == groups
    assert memory["capacity_tokens"] == plan.layout.capacity_tokens
    assert memory["max_model_len"] == real.info.max_model_len
    assert memory["note"] == plan.note
    assert facts["parameters"] == real.info.num_parameters
    assert facts["loaded_bytes"] == real.source.parameter_bytes
    assert facts["dtype"] == real.info.dtype and facts["device"] == real.info.device
    spec = kv_group(real.source.model)
    assert facts["kv"]["bytes_per_token"] == spec.bytes_per_token()
    windowed = [window for window in spec.windows if window is not None]
    assert sum(one["layers"] for one in facts["kv"]["windows"]) == len(windowed)
    assert {one["tokens"] for one in facts["kv"]["windows"]} == set(windowed)


@sweep(every=3)
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
@pytest.mark.parametrize("name", SHAPES)
async def test_the_plan_is_the_executors(
    name: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From what is free, once enough for some sequences and once too little for one of full length."""
    build(name, tmp_path)
    chosen = config(tmp_path, dtype=dtype)
    ample = describe.describe(chosen, 1 << 40)
    memory = ample["memory"]
    blocks = ample["context_length"] // memory["block_size"]
    sequence = sum(group["bytes_per_block"] for group in memory["groups"]) * blocks
    for sequences in (2.5, 0.4):
        free = int(ample["memory"]["reserved"] + sequences * sequence / kv_plan.CPU_SHARE)
        monkeypatch.setattr(kv_plan, "memory_limit", lambda free=free: MemoryLimit(1 << 40, free))
        real = await loaded(chosen)
        # The executor asks when the weights are in memory, the verb takes them away itself.
        before = free + real.source.parameter_bytes
        monkeypatch.setattr(describe, "memory_limit", lambda before=before: MemoryLimit(1 << 40, before))
        facts = describe.describe(chosen)
        agree(facts, real)
        assert (facts["memory"]["note"] is not None) == (sequences < 1)


def room_for_less_than_a_sequence(chosen: ExecutorConfig) -> int:
    """Bytes beside the weights that hold 0.4 of the longest sequence."""
    memory = describe.describe(chosen, 1 << 40)["memory"]
    each = sum(group["bytes_per_block"] for group in memory["groups"]) / memory["block_size"]
    return int(memory["reserved"] + 0.4 * memory["max_model_len"] * each / kv_plan.CPU_SHARE)


@pytest.mark.parametrize("draft_shape", ["olmo2", "gemma4-keys-that-are-values"])
async def test_a_draft_model_is_counted_as_the_executor_does(
    draft_shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights and its KV."""
    build("olmo2", tmp_path / "model")
    build(draft_shape, tmp_path / "draft")
    optimization = OptimizationConfig(num_threads=1, draft_model=str(tmp_path / "draft"), max_drafts=2)
    chosen = replace(config(tmp_path / "model"), optimization=optimization)
    free = room_for_less_than_a_sequence(chosen)
    monkeypatch.setattr(kv_plan, "memory_limit", lambda: MemoryLimit(1 << 40, free))
    real = await loaded(chosen)
    before = free + real.source.parameter_bytes + real.draft.parameter_bytes
    monkeypatch.setattr(describe, "memory_limit", lambda: MemoryLimit(1 << 40, before))
    facts = describe.describe(chosen)
    agree(facts, real)
    plain = describe.describe(config(tmp_path / "model"))["memory"]
    assert facts["memory"]["groups"][0]["bytes_per_block"] > plain["groups"][0]["bytes_per_block"]
    assert 16 <= facts["memory"]["max_model_len"] < 256


def test_a_draft_model_of_other_tokens_is_refused(tmp_path: Path) -> None:
    build("olmo2", tmp_path / "model")
    optimization = OptimizationConfig(num_threads=1, draft_model=str(weights_dir()), max_drafts=2)
    with pytest.raises(ConfigError, match="both must have the same tokens"):
        describe.describe(replace(config(tmp_path / "model"), optimization=optimization))


async def test_a_length_that_a_package_names_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a start does: it is no demand of the user's."""
    chosen = config(weights_dir(), max_model_len=2048, shrink_length=True)
    free = room_for_less_than_a_sequence(chosen)
    monkeypatch.setattr(kv_plan, "memory_limit", lambda: MemoryLimit(1 << 40, free))
    real = await loaded(chosen)
    before = free + real.source.parameter_bytes
    monkeypatch.setattr(describe, "memory_limit", lambda: MemoryLimit(1 << 40, before))
    agree(facts := describe.describe(chosen), real)
    assert 16 <= facts["memory"]["max_model_len"] < 2048
    demanded = describe.describe(replace(chosen, shrink_length=False))["memory"]["problem"]
    assert "a sequence of 2,048 tokens needs" in demanded


async def test_int8_is_planned_as_the_executor_packs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    optimization = OptimizationConfig(num_threads=1, quantization="int8")
    chosen = replace(config(weights_dir(), dtype="bfloat16"), optimization=optimization)
    free = 200_000_000
    monkeypatch.setattr(kv_plan, "memory_limit", lambda: MemoryLimit(1 << 40, free))
    real = await loaded(chosen)
    before = free + real.source.parameter_bytes
    monkeypatch.setattr(describe, "memory_limit", lambda: MemoryLimit(1 << 40, before))
    facts = describe.describe(chosen)
    agree(facts, real)
    assert facts["quantization"] == real.info.quantization == "int8"
    plain = describe.describe(config(weights_dir(), dtype="bfloat16"))
    assert plain["quantization"] is None
    assert facts["loaded_bytes"] < 0.75 * plain["loaded_bytes"]


def test_int8_without_kernels_is_refused_as_it_will_be() -> None:
    optimization = OptimizationConfig(num_threads=1, quantization="int8")
    attention = ExecutorAttentionConfig(backend="torch")
    chosen = replace(config(weights_dir()), attention=attention, optimization=optimization)
    with pytest.raises(ConfigError, match=r"quantization int8: needs .* attention backend torch is set"):
        describe.describe(chosen)


async def test_an_explicit_size_is_the_executors_too() -> None:
    chosen = config(weights_dir(), memory=ExecutorMemoryConfig(kv_cache_memory_bytes=3250 * BYTES_PER_TOKEN))
    real = await loaded(chosen)
    facts = describe.describe(chosen)
    agree(facts, real)
    assert facts["memory"]["kv_bytes"] == 3250 * BYTES_PER_TOKEN
    rows = {row["length"]: row for row in facts["memory"]["sequences"]}
    # 203 blocks of 16.
    assert rows[512] == {"length": 512, "kv_bytes": 512 * BYTES_PER_TOKEN, "fit": 6, "at_once": 6}
    assert rows[2048] == {"length": 2048, "kv_bytes": 2048 * BYTES_PER_TOKEN, "fit": 1, "at_once": 1}


async def test_windows_have_blocks_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """27 tokens of 5 layers: three keep a window of 24 tokens, which are three blocks of 16 at most, and two keep all."""
    fields = {
        **QWEN3, "num_hidden_layers": 5, "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2,
    }  # fmt: skip
    path = write_checkpoint(tmp_path, fields)
    chosen = config(path, memory=ExecutorMemoryConfig(kv_cache_memory_bytes=8 << 20), max_model_len=512)
    real, facts = await loaded(chosen), describe.describe(chosen)
    agree(facts, real)
    full, window = real.plan.layout.groups
    assert (full.window, window.window) == (None, 24) and full.bytes_per_block < window.bytes_per_block
    [row] = [row for row in facts["memory"]["sequences"] if row["length"] == 512]
    assert row["kv_bytes"] == 32 * full.bytes_per_block + 3 * window.bytes_per_block
    assert row["fit"] == min(full.num_blocks // 32, window.num_blocks // 3)
    verb._show({**facts, "text": verb.text_facts(weights_dir())})
    assert f"{window.num_blocks:,} for windows of 24" in capsys.readouterr().out


def test_what_it_says_of_the_checkpoint(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(0)
    reference = build("mistral-window", tmp_path)
    facts = describe.describe(config(tmp_path))
    elements = sum(parameter.numel() for parameter in reference.model.parameters())
    assert facts["parameters"] == elements
    assert facts["checkpoint"] == {
        "bytes": 4 * elements,
        "dtype": "float32",
        "formats": {"float32": 4 * elements},
        "files": 1,
        "problem": None,
        "fetched": True,
        "left_out": None,
    }
    assert describe.describe(config(tmp_path, dtype="float16"))["weight_bytes"] == 2 * elements
    assert facts["kv"]["windows"] == [{"tokens": 17, "layers": 3}]
    assert facts["kv"]["bytes_per_token_per_layer"] * 3 == facts["kv"]["bytes_per_token"]


def test_it_says_what_of_a_checkpoint_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    build("mistral-beside-images", tmp_path)
    for path, alone in ((tmp_path, True), (weights_dir(), False)):
        verb._show({**describe.describe(config(path)), "text": verb.text_facts(weights_dir())})
        assert ("text only: the checkpoint's other parts are left out" in capsys.readouterr().out) == alone


def test_it_says_what_is_not_used_and_that_there_is_no_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    build("qwen3-untied-one-kv-head", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "clip_qkv": 8.0}))
    verb._show({**describe.describe(config(tmp_path)), "text": verb.text_facts(weights_dir())})
    shown = capsys.readouterr().out
    assert "embeddings only: the checkpoint has no lm_head" in shown
    assert "not used, as in transformers: clip_qkv 8.0 (the qwen3 family has no such key)" in shown


def test_what_fits_is_what_the_pool_holds() -> None:
    """Memory for far more makes no larger a pool than max_num_seqs sequences of full length can use."""
    memory = describe.describe(config(weights_dir()), 1 << 34)["memory"]
    context = memory["max_model_len"]
    assert memory["capacity_tokens"] == 8 * context
    assert memory["pool_bytes"] == memory["capacity_tokens"] * BYTES_PER_TOKEN < memory["kv_bytes"]
    for row in memory["sequences"]:
        assert row["fit"] == memory["capacity_tokens"] // row["length"]
        assert row["at_once"] == 8
    assert memory["full_sequences_in_memory"] == memory["kv_bytes"] // (context * BYTES_PER_TOKEN) > 8


def test_memory_is_for_everything() -> None:
    """A gigabyte more gives KV its share of a gigabyte more."""
    gigabyte = 1 << 30
    small, large = (
        describe.describe(config(weights_dir()), n * gigabyte)["memory"]["kv_bytes"] for n in (4, 5)
    )
    assert large - small == pytest.approx(kv_plan.CPU_SHARE * gigabyte, rel=0.02)
    assert small < kv_plan.CPU_SHARE * (4 * gigabyte - describe.SERVER_BYTES)


def test_memory_that_does_not_suffice() -> None:
    memory = describe.describe(config(weights_dir()), 1 << 20)["memory"]
    assert re.match(r"the weights need [\d,]+ bytes beside [\d,]+ for the processes", memory["problem"])
    tight = config(weights_dir(), memory=ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 20))
    assert (
        f"one sequence needs {2048 * BYTES_PER_TOKEN:,} bytes of KV"
        in describe.describe(tight)["memory"]["problem"]
    )


def test_weights_that_are_not_here(tmp_path: Path) -> None:
    """As for a hub name, of which the small files are fetched."""
    copy = Path(shutil.copytree(weights_dir(), tmp_path / "copy"))
    (copy / "model.safetensors").unlink()
    facts = describe.describe(config(copy))
    assert facts["checkpoint"]["bytes"] == 2 * facts["parameters"]
    assert "no weights" in facts["checkpoint"]["problem"]
    index = {"metadata": {"total_size": 12345}, "weight_map": {"a": "model-1.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    assert describe.describe(config(copy))["checkpoint"]["bytes"] == 12345


def test_a_long_context_takes_no_time(tmp_path: Path) -> None:
    build("llama-tied-no-gqa-linear-rope", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_position_embeddings": 1 << 30}))
    facts = describe.describe(config(tmp_path), 1 << 44)
    assert facts["context_length"] >= 1 << 30
    lengths = [row["length"] for row in facts["memory"]["sequences"]]
    assert lengths[:4] == [512, 2048, 8192, 32768] and lengths == sorted(lengths)


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        describe.describe(config(tmp_path))


def test_text_facts(tmp_path: Path) -> None:
    assert verb.text_facts(weights_dir()) == {
        "tokens": Tokenizer.load(weights_dir()).vocab_size, "chat_template": True, "tools": True, "problem": None,
        "notes": [],
    }  # fmt: skip
    assert "tokenizer.json" in verb.text_facts(tmp_path)["problem"]
    copy = Path(shutil.copytree(weights_dir(), tmp_path / "copy"))
    (copy / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    facts = verb.text_facts(copy)
    assert facts["chat_template"] and not facts["tools"]
    fields = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps({**fields, "conversion_notes": ["one note"]}))
    assert verb.text_facts(copy)["notes"] == ["one note"]


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("memory", [None, 4 << 30, 1 << 20])
def test_it_fits_the_terminal(
    width: int, memory: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    facts = describe.describe(config(weights_dir()), memory)
    verb._show({**facts, "name": "cohort-tiny", "text": verb.text_facts(weights_dir())})
    shown = capsys.readouterr().out
    assert all(len(line) <= width for line in shown.splitlines()), shown
    parameters = facts["parameters"]
    assert (
        f"{parameters / 1e6:.2f}M ({parameters:,})" in shown
        and f"{BYTES_PER_TOKEN / 1024:.2f} KiB in bfloat16 (512 bytes a layer)" in shown
    )
    assert ("does not fit" in shown) == (memory == 1 << 20)
    assert (f"{BYTES_PER_TOKEN / 512:.2f} MiB" in shown) == (memory != 1 << 20)
    assert (f"Sequences in the KV cache of {BYTES_PER_TOKEN / 64:.1f} MiB" in shown) == (memory != 1 << 20)
    assert ("a higher --max-num-seqs" in " ".join(shown.split())) == (memory != 1 << 20)


def test_sizes_for_people() -> None:
    sizes = {0: "0 bytes", 1023: "1,023 bytes", 1536: "1.50 KiB", 5 << 40: "5.00 TiB", 700 << 20: "700 MiB"}
    assert {number: size(number) for number in sizes} == sizes
    assert [count(n) for n in (999, 2_640_000, 8_030_000_000)] == ["999", "2.64M", "8.03B"]


def test_sizes_from_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert as_bytes("16GiB", "--memory") == 16 << 30
    assert as_bytes(None, "--memory") is None
    for text in ("much", "0"):
        with pytest.raises(SystemExit) as ended:
            as_bytes(text, "--memory")
        assert ended.value.code == 2
        assert capsys.readouterr().err.startswith("cohort: error: --memory: it should be ")


def test_heads_of_two_sizes_and_layers_that_share_are_told(tmp_path: Path) -> None:
    build("gemma4-inputs-of-layers-and-shared-kv", tmp_path)
    facts = describe.describe(config(tmp_path))
    assert facts["other_heads"] == [{"kv_heads": 2, "head_dim": 24, "layers": 3}]
    assert facts["layers_that_share_kv"] == 5 and facts["kv"]["layers"] == 3
