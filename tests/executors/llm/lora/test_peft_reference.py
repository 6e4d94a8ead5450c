"""Adapters that PEFT wrote, many in one batch, beside what PEFT makes of each one merged into its model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from executors.contract import ConfigError
from executors.llm.tools.wide_copy import write_wide_copy
from executors.lora import pack
from executors.lora.peft import WEIGHTS
from tests.executors.gguf_files import converted_checkpoint, prepared, sizes, write_gguf
from tests.executors.llm.lora.test_loras import logits, prompt, start
from tests.executors.llm.models import Reference
from tests.executors.lora.gguf_loras import write_gguf_adapter

pytestmark = [
    pytest.mark.long,
    # PEFT asks transformers by an old name, and says where it did not look for a model's card.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
]

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
DELTA = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]
KINDS: tuple[dict[str, Any], ...] = (
    {"r": 1, "lora_alpha": 2},
    {"r": 4, "lora_alpha": 8, "use_rslora": True},
    {"r": 16, "lora_alpha": 16},
    {"r": 8, "lora_alpha": 4, "rank_pattern": {r"(layers|h)\.0\..*": 2}},
    {"r": 3, "lora_alpha": 5, "alpha_pattern": {"o_proj|c_proj|out_proj": 9}},
    {"r": 33, "lora_alpha": 11},
    {"r": 2, "lora_alpha": 4, "layers_to_transform": [1], "target": "few"},
    {"r": 5, "lora_alpha": 10, "target": "few"},
)
FEW = {
    "Phi3ForCausalLM": ["qkv_proj", "down_proj"],
    "GPT2LMHeadModel": ["c_attn"],
    "Lfm2ForCausalLM": ["in_proj"],
    "Lfm2MoeForCausalLM": ["in_proj"],
    # One of two parts of a matrix.
    "Qwen3NextForCausalLM": ["q_proj", "in_proj_ba"],
    "Qwen3_5ForCausalLM": ["q_proj", "in_proj_z", "in_proj_a"],
    "Qwen3_5ForConditionalGeneration": ["q_proj", "in_proj_z", "in_proj_a"],
    "Qwen3_5MoeForConditionalGeneration": ["q_proj", "in_proj_z", "in_proj_a"],
}
"""Targets of an adapter that leaves some linear layers alone; q_proj and v_proj elsewhere."""

Written = list[tuple[Path, np.ndarray]]
"""An adapter's folder, and the logits behind its prompt."""


def asked(number: int) -> list[int]:
    return prompt(number, 5 + 2 * number)


def last_logits(model: Any, ids: Sequence[int]) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = model(torch.tensor([list(ids)])).logits[0, -1].float().numpy()
    return found


def write(
    model: Any, folder: Path, number: int, targets: str | list[str], size: float = 1.0
) -> tuple[Path, np.ndarray]:
    """Have PEFT write an adapter, load it again and merge it. `size`: deviation of what A and B are drawn from, times the
    root of what they multiply."""
    import peft

    fields = dict(KINDS[number])
    few = fields.pop("target", None)
    if few and hasattr(model.model if hasattr(model, "model") else model, "vision_tower"):
        fields.pop("layers_to_transform", None)  # its names would also be found in the part that reads images
    elif few:
        targets = FEW.get(type(model).__name__, ["q_proj", "v_proj"])
    torch.manual_seed(number)
    # With this start B is not zero.
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=targets, init_lora_weights=False, **fields)
    made = peft.get_peft_model(copy.deepcopy(model), config)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if ".lora_" in name:
                parameter.normal_(0.0, size * parameter.shape[1] ** -0.5)
    made.save_pretrained(folder)
    merged = peft.PeftModel.from_pretrained(copy.deepcopy(model), folder).merge_and_unload()
    return folder, last_logits(merged.eval(), asked(number))


async def answers(path: Path, folders: Sequence[Path], **changes: Any) -> list[np.ndarray]:
    """Of all adapters and then of the model alone, in one forward."""
    executor = await start(path, len(folders), **changes)
    packed_at = folders[0].parent / "packed"
    packed_at.mkdir(exist_ok=True)
    try:
        for number, folder in enumerate(folders):
            packed = pack(folder, packed_at, 256)
            beside = any("vision" in name for name in safe_open(folder / WEIGHTS, "pt").keys())  # noqa: SIM118
            assert bool(packed.notes) == beside
            await executor.load_adapter(f"a{number}", str(packed.path), packed.digest)  # type: ignore[attr-defined]
        names = [*(f"a{number}" for number in range(len(folders))), None]
        return await logits(executor, [(asked(number), name) for number, name in enumerate(names)])
    finally:
        await executor.shutdown()


def check_equal(found: np.ndarray, expected: np.ndarray, about: str) -> None:
    largest = max(1.0, float(np.abs(expected).max()))
    assert np.abs(found - expected).max() < 1e-4 * largest, about


@pytest.mark.long(every=11)
@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("llama-biases-llama3-rope", "all-linear"),
        ("qwen3-tied-gqa", "all-linear"),
        ("gemma-one-kv-head", "all-linear"),
        ("gemma2-caps-alternating-windows", "all-linear"),
        ("gemma3-two-ropes", "all-linear"),
        ("phi3-window", "all-linear"),
        ("gpt2", "all-linear"),
        ("mistral-window", "all-linear"),
        ("olmo2", "all-linear"),
        ("granite", "all-linear"),
        ("qwen2-biases", "all-linear"),
        ("ministral3-growing-queries", "all-linear"),
        ("glm4-neighbours-of-half-a-head", "all-linear"),
        ("hunyuan-norms-last-alpha", "all-linear"),
        ("olmo3-windows-yarn", "all-linear"),
        ("exaone4-windows-rotated-alone", "all-linear"),
        # Of experts the one of every token alone.
        ("qwen2-moe-shared-expert", [*ATTENTION, *MLP]),
        ("qwen3-beside-images", [*ATTENTION, "gate_proj"]),
        ("mixtral", ATTENTION),
        ("qwen3-moe", ATTENTION),
        ("gpt-oss-sinks-windows", ATTENTION),
        ("gemma4-unified", "all-linear"),
        ("gemma4-inputs-of-layers-and-shared-kv", [*ATTENTION, *MLP]),
        ("gemma4-experts-beside-mlp", [*ATTENTION, *MLP]),
        ("lfm2-short-convolutions", "all-linear"),
        ("lfm2-biases-kernel-of-5-untied", "all-linear"),
        ("lfm2-moe-sigmoid-router", ["q_proj", "k_proj", "v_proj", "in_proj", "out_proj", "w1", "w2", "w3"]),
        ("qwen3-next", [*ATTENTION, "in_proj_qkvz", "in_proj_ba", "out_proj"]),
        ("qwen3.5", "all-linear"),
        ("qwen3.5-beside-images", [*ATTENTION, *DELTA]),
        ("qwen3.5-moe-beside-images", [*ATTENTION, *MLP, *DELTA]),
        # Its pairs for the part that reads images are left out.
        ("gemma3-beside-images", "all-linear"),
    ],
)  # fmt: skip
async def test_eight_in_one_batch_equal_each_merged_model(
    reference: Callable[[str], Reference], tmp_path: Path, name: str, targets: str | list[str]
) -> None:
    base = reference(name)
    written = [write(base.model, tmp_path / f"a{number}", number, targets) for number in range(len(KINDS))]
    found = await answers(base.path, [folder for folder, _ in written])
    plain = last_logits(base.model, asked(len(KINDS)))
    check_equal(found[-1], plain, "the model alone")
    for number, (_, expected) in enumerate(written):
        check_equal(found[number], expected, f"adapter {number}")
        alone = last_logits(base.model, asked(number))
        assert np.abs(expected - alone).max() > 0.01, "an adapter that changes nothing proves nothing"


@pytest.mark.long(every=2)
@pytest.mark.parametrize("kind", ["int8", "int4", "Q8_0", "Q4_K"])
async def test_over_a_quantized_model(
    reference: Callable[[str], Reference], tmp_path: Path, kind: str
) -> None:
    """An adapter's logits are as near to those of PEFT over the wide model as the quantized model's own are to it."""
    import transformers

    fields = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 160, "hidden_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 256,
        "max_position_embeddings": 256, "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    }  # fmt: skip
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields)).float().eval()
    with torch.no_grad():  # so that layers matter
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 1.2 * parameter.shape[-1] ** -0.5)
    model.save_pretrained(tmp_path / "wide")
    path, changes = tmp_path / "wide", {}
    if kind.startswith("int"):
        changes = {"optimization": {"quantization": kind}}
    else:
        tensors = converted_checkpoint(tmp_path / "wide", "llama")
        metadata = {**sizes(fields), "rope.dimension_count": 64}
        file = write_gguf(
            tmp_path / "model.gguf",
            "llama",
            metadata,
            tensors,
            lambda name: kind if "blk." in name else "Q8_0",
        )
        path = prepared(tmp_path / "gguf", file)
        write_wide_copy(path, tmp_path / "copy")
        model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "copy", dtype=torch.float32).eval()
    # Blocks of Q4_K are random bytes, and large numbers.
    size = float(model.model.layers[0].mlp.down_proj.weight.detach().std() * 256**0.5) ** 0.5
    written = [
        write(model, tmp_path / f"a{number}", number, "all-linear", size) for number in range(len(KINDS))
    ]
    found = await answers(path, [folder for folder, _ in written], **changes)
    plain = last_logits(model, asked(len(KINDS)))
    own = np.abs(found[-1] - plain).mean() / np.abs(plain).mean()
    assert 0 < own < 0.5, "the model is quantized"
    for number, (_, expected) in enumerate(written):
        error = np.abs(found[number] - expected).mean() / np.abs(expected).mean()
        assert error < 2 * own + 1e-4, (number, error, own)
        alone = last_logits(model, asked(number))
        changed = np.abs(expected - alone).mean() / np.abs(expected).mean()
        if "target" not in KINDS[number]:
            assert changed > 2 * error, (number, changed, error, own)


async def test_what_peft_writes_and_changes_the_model_is_refused(
    reference: Callable[[str], Reference], tmp_path: Path
) -> None:
    import peft

    base = reference("llama-biases-llama3-rope")
    (tmp_path / "packed").mkdir()
    for number, (fields, why) in enumerate(
        (
            ({"use_dora": True}, "use_dora"),
            ({"modules_to_save": ["lm_head"]}, "lm_head.weight has nothing in the model's files"),
            ({"bias": "lora_only"}, "bias"),
            ({"init_lora_weights": "pissa"}, "changes the model's own weights"),
            ({"trainable_token_indices": [1]}, "trainable_token_indices"),
            ({"layer_replication": [(0, 2), (1, 2)]}, "layer_replication"),
        )
    ):
        config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], **fields)
        made = peft.get_peft_model(copy.deepcopy(base.model), config)
        made.save_pretrained(tmp_path / str(number))
        with pytest.raises(ConfigError, match=why):
            pack(tmp_path / str(number), tmp_path / "packed", 256)
    # IA3 is no LoRA.
    config = peft.IA3Config(task_type="CAUSAL_LM", target_modules=["q_proj"], feedforward_modules=[])
    peft.get_peft_model(copy.deepcopy(base.model), config).save_pretrained(tmp_path / "ia3")
    with pytest.raises(ConfigError, match="peft_type"):
        pack(tmp_path / "ia3", tmp_path / "packed", 256)


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("gpt-oss-sinks-windows", {"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters"),
        ("gemma4-experts-beside-mlp", {"target_parameters": ["experts.down_proj"]}, "target_parameters"),
        ("gemma4-experts-beside-mlp", {"target_modules": ["router.proj"]}, r"router\.proj: adapters of this weight"),
        ("gemma4-inputs-of-layers-and-shared-kv", {"target_modules": "all-linear"}, "per_layer_input_gate: adapters of"),
    ],
)  # fmt: skip
async def test_adapters_of_experts_and_of_inputs_of_layers_are_refused_by_name(
    reference: Callable[[str], Reference], tmp_path: Path, name: str, fields: dict[str, Any], why: str
) -> None:
    import peft

    base = reference(name)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, **{"target_modules": ["q_proj"], **fields})
    peft.get_peft_model(copy.deepcopy(base.model), config).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ConfigError, match=why):
        await answers(base.path, [tmp_path / "adapter"])


@pytest.mark.long(every=4)
@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("llama-biases-llama3-rope", "llama"),
        ("qwen3-tied-gqa", "qwen3"),
        ("gemma2-caps-alternating-windows", "gemma2"),
        ("gemma3-two-ropes", "gemma3"),
        ("gemma4-keys-that-are-values", "gemma4"),
        ("phi3-window", "phi3"),
        ("gpt2", "gpt2"),
        ("granite", "granite"),
        ("ministral3-growing-queries", "mistral3"),
        ("glm4-neighbours-of-half-a-head", "glm4"),
        ("hunyuan-norms-last-alpha", "hunyuan-dense"),
        ("exaone4-windows-rotated-alone", "exaone4"),
        ("olmo2", "olmo2"),
    ],
)
async def test_as_gguf_files(
    reference: Callable[[str], Reference], tmp_path: Path, name: str, arch: str
) -> None:
    base = reference(name)
    folder, expected = write(base.model, tmp_path / "peft", 2, "all-linear")
    made: dict[str, list[torch.Tensor]] = {}
    for key, tensor in sorted(load_file(folder / WEIGHTS).items()):  # A before B
        made.setdefault(key.removeprefix("base_model.model.").partition(".lora_")[0], []).append(tensor)
    count = base.model.config.num_attention_heads
    heads = count, base.model.config.to_dict().get("num_key_value_heads", count)
    pairs = {module: (a, b) for module, (a, b) in made.items()}
    adapter = write_gguf_adapter(tmp_path / "a.gguf", pairs, arch, KINDS[2]["lora_alpha"], heads)
    executor = await start(base.path, 1)
    (tmp_path / "packed").mkdir()
    try:
        packed = pack(adapter, tmp_path / "packed", 256)
        await executor.load_adapter("a", str(packed.path), packed.digest)  # type: ignore[attr-defined]
        [found] = await logits(executor, [(asked(2), "a")])
    finally:
        await executor.shutdown()
    check_equal(found, expected, name)
    assert np.abs(expected - last_logits(base.model, asked(2))).max() > 0.01
