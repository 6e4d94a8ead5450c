"""What `cohort info`, `cohort list`, `cohort verify`, a start and /api/show say of states is what the executor allocates."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from executors.cgroup import MemoryLimit
from executors.contract import ConfigError, ExecutorMemoryConfig, OptimizationConfig, StateLayout
from executors.llm.memory import kv_plan
from executors.llm.memory.kv_sizes import LEAST_SNAPSHOTS
from executors.llm.tools import describe, fits
from executors.tiny import weights_dir
from server.commands import info as verb
from server.commands.common import size
from server.commands.verify import view
from server.startup import banner
from tests.executors.checkpoints import write_config
from tests.executors.llm.model.test_published_families import PUBLISHED
from tests.executors.llm.models import build
from tests.server.commands.test_info import agree, config, loaded
from tests.server.commands.test_verify import compared
from tests.server.fakes import INFO, House

HYBRIDS = (
    "lfm2-short-convolutions", "lfm2-moe-sigmoid-router", "qwen3-next-some-dense-layers-biases-one-kv-head",
    "qwen3.5-beside-images",
)  # fmt: skip
SEQUENCES = 8
"""As many as `config` has at once."""


def agree_on_states(facts: dict[str, Any], real: Any) -> None:
    """Assert that the states are those in the executor's memory, byte for byte."""
    cache, told, slots = real.runner.states, facts["states"], facts["memory"]["states"]
    allocated = cache.slots.nbytes
    assert told["layers"] == len(cache.layers) and told["dtype"] == "float32"
    assert slots["bytes"] == allocated == slots["slots"] * told["bytes_per_sequence"]
    assert slots["slots"] == len(cache.layers[0]) and slots["snapshots"] == slots["slots"] - SEQUENCES
    assert slots["interval"] == cache.layout.interval > 0
    blocks = sum(group["num_blocks"] * group["bytes_per_block"] for group in facts["memory"]["groups"])
    assert facts["memory"]["pool_bytes"] == blocks + allocated


@pytest.mark.parametrize("name", HYBRIDS)
async def test_the_plan_is_the_executors(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for some sequences, and for less than one of full length beside the states of all."""
    build(name, tmp_path)
    chosen = config(tmp_path)
    ample = describe.describe(chosen, 1 << 40)
    memory = ample["memory"]
    blocks = ample["context_length"] // memory["block_size"]
    sequence = sum(group["bytes_per_block"] for group in memory["groups"]) * blocks
    states = (SEQUENCES + LEAST_SNAPSHOTS) * ample["states"]["bytes_per_sequence"]
    for sequences in (2.5, 0.4):
        free = int(memory["reserved"] + (states + sequences * sequence) / kv_plan.CPU_SHARE)
        monkeypatch.setattr(kv_plan, "memory_limit", lambda free=free: MemoryLimit(1 << 40, free))
        real = await loaded(chosen)
        before = free + real.source.parameter_bytes
        monkeypatch.setattr(describe, "memory_limit", lambda before=before: MemoryLimit(1 << 40, before))
        facts = describe.describe(chosen)
        agree(facts, real)
        agree_on_states(facts, real)
        assert (facts["memory"]["note"] is not None) == (sequences < 1)
        [row] = fits.run({"configs": [asdict(chosen)]}, lambda stage: None) or []
        assert row["context"] == real.info.max_model_len, "what `cohort list` shows"


async def test_a_sequence_takes_its_state_whatever_its_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    build("qwen3.5-beside-images", tmp_path)
    chosen = config(tmp_path, memory=ExecutorMemoryConfig(kv_cache_memory_bytes=4 << 20))
    real, facts = await loaded(chosen), describe.describe(chosen)
    agree(facts, real)
    agree_on_states(facts, real)
    each, slots = facts["states"]["bytes_per_sequence"], facts["memory"]["states"]
    [group] = facts["memory"]["groups"]
    for row in facts["memory"]["sequences"]:
        assert row["kv_bytes"] == each + -(-row["length"] // 16) * group["bytes_per_block"]
        assert row["at_once"] <= row["fit"] <= slots["slots"]
    verb._show({**facts, "text": verb.text_facts(weights_dir())})
    shown = " ".join(capsys.readouterr().out.split())
    assert "in float32, however long it is: in 3 of 4 layers in place of KV" in shown
    assert f"for 8 sequences and {slots['snapshots']} snapshots" in shown
    assert "reuses another one's beginning up to a snapshot, at a multiple of 64 tokens" in shown
    assert "KV and state each" in shown


def test_models_without_states_say_nothing_of_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    facts = describe.describe(config(weights_dir()))
    assert facts["states"] is None and facts["memory"]["states"] is None
    verb._show({**facts, "text": verb.text_facts(weights_dir())})
    shown = capsys.readouterr().out
    assert "state" not in shown and "KV each" in shown


def test_info_refuses_what_a_start_would(tmp_path: Path) -> None:
    build("lfm2-short-convolutions", tmp_path)
    optimization = OptimizationConfig(num_threads=1, draft_model=str(tmp_path))
    with pytest.raises(
        ConfigError, match="draft_model: the model's or the draft model's layers have a state"
    ):
        describe.describe(replace(config(tmp_path), optimization=optimization))


def test_verify_says_what_it_compares_in_chunks(tmp_path: Path) -> None:
    build("lfm2-short-convolutions", tmp_path / "hybrid")
    build("qwen3-tied-gqa", tmp_path / "plain")
    for name, told in (("hybrid", True), ("plain", False)):
        report = compared(tmp_path / name)
        rows = report["logits"]["prompts"]
        assert [row["chunked_positions"] for row in rows] == (
            [1] * 3 if told else [row["length"] for row in rows]
        )
        assert (
            "last position in chunks, between which layers keep a state" in view._tolerance(report)
        ) == told


def test_the_text_of_a_start_counts_states() -> None:
    layout = House().core.executor.kv_layout()
    facts = banner.Facts(
        url="http://x", name="base", info=INFO, layout=replace(layout, state=StateLayout(3 << 20, 24, 64)), weight_bytes=0,
        max_model_len=512, needs_key=False,
    )  # fmt: skip
    lines = facts.text().splitlines()
    assert (
        "  states    24 of 3.00 MiB, one a sequence, others as snapshots: prompts share beginnings at multiples of 64 tokens"
        in lines
    )
    [memory] = [line for line in lines if line.startswith("  memory")]
    assert f"{(layout.num_bytes + (72 << 20)) / 2**30:.2f} GiB KV and states = " in memory
    assert "state" not in replace(facts, layout=layout).text()


async def test_api_show_has_the_numbers_of_states() -> None:
    house = House()
    plain = (await house.post("/api/show", {"model": "fake"})).json()["model_info"]
    assert not [name for name in plain if "state" in name]
    assert house.state.model is not None
    house.state.model = replace(house.state.model, states=StateLayout(1000, 24, 64))
    shown = (await house.post("/api/show", {"model": "fake"})).json()["model_info"]
    assert shown == plain | {
        "cohort.state.bytes_per_sequence": 1000, "cohort.state.slots": 24, "cohort.state.snapshot_interval": 64,
    }  # fmt: skip


@pytest.mark.parametrize(
    "name", ["LFM2-1.2B", "Qwen3.5-4B", "Qwen3.5-35B-A3B", "Qwen3-Next-80B-A3B-Instruct"]
)
def test_the_page_has_the_figures_of_published_models(name: str, tmp_path: Path) -> None:
    facts = describe.describe(config(write_config(tmp_path, PUBLISHED[name]), dtype="bfloat16"))
    states = facts["states"]
    row = (
        f"| {name} | {states['layers']} of {facts['layers']} | {size(states['bytes_per_sequence'])} | "
        f"{size(facts['kv']['bytes_per_token'])} |"
    )
    page = (Path(__file__).resolve().parents[3] / "docs/models.md").read_text("utf-8")
    assert row in page.splitlines()
