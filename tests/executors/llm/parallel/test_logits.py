"""Logits of a model on several ranks are those of one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from executors.contract import ExecutorAttentionConfig, ExecutorConfig, OptimizationConfig
from executors.lora import pack
from executors.tiny import weights_dir
from tests.executors.checkpoints import LLAMA, QWEN3, write_checkpoint
from tests.executors.gguf_files import converted_checkpoint, merge_all, prepared, sizes, write_gguf
from tests.executors.llm.checkpoint.fused_layouts import experts_in_one, linears_in_one
from tests.executors.llm.checkpoint.gpt_oss_files import in_mxfp4
from tests.executors.llm.checkpoint.quantized_checkpoints import FORMS, GPTQ, write_mixed, write_quantized
from tests.executors.llm.driver import config
from tests.executors.llm.models import build
from tests.executors.llm.parallel.rank_process import logits_of, on_ranks
from tests.executors.lora.gguf_loras import write_gguf_adapter
from tests.executors.lora.peft_files import write_peft
from tests.tiers import part_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

Job = tuple[ExecutorConfig, Sequence[str]]
FLOAT32 = {"dtype": "float32"}
MOE = {
    **QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 40, "norm_topk_prob": True, "decoder_sparse_step": 2, "mlp_only_layers": [],
}  # fmt: skip
WINDOWS = {
    **QWEN3, "num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2,
}  # fmt: skip
"""The first stage has no layer of the window's group, the second one has no other."""
OLMO2 = {**QWEN3, "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2"}
SHARED = {
    **MOE, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "shared_expert_intermediate_size": 72,
}  # fmt: skip
MINISTRAL = {
    **QWEN3, "architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3",
    "rope_parameters": {"rope_type": "default", "original_max_position_embeddings": 2, "llama_4_scaling_beta": 0.3},
}  # fmt: skip
GPT_OSS = {
    **QWEN3, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 6, "num_experts_per_tok": 2,
    "intermediate_size": 40, "attention_bias": True, "sliding_window": 5, "swiglu_limit": 1.5, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
GLM4 = {**QWEN3, "architectures": ["Glm4ForCausalLM"], "model_type": "glm4"}
WRITTEN_BY_TRANSFORMERS = (
    "olmo3-windows-yarn", "exaone4-windows-rotated-alone", "hunyuan-norms-last-alpha", "phi4-mini-tied-longrope-of-a-part",
    "qwen3-beside-images", "qwen2-moe-windows-some-dense-layers",
)  # fmt: skip
"""Shapes of `tests.executors.llm.models`."""
INTEGERS = (
    "an expert of every token, int4",
    "GGUF", "GGUF of merged tensors",
    "GPTQ", "GPTQ in another order of columns", "GPTQ of 4 and 8 bits", "AWQ", "experts in 4 bits", "int8", "int4",
    "int8, heads that are no blocks", "experts in MXFP4",
)  # fmt: skip
"""Models whose activations the kernels round to 8 bits."""
GGUF = {
    **LLAMA, "hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 32, "tie_word_embeddings": False,
}  # fmt: skip
BIASES = {
    **LLAMA,
    "num_key_value_heads": 1,
    "attention_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": False,
}


def _quantized(quantization: str) -> dict[str, Any]:
    return {**FLOAT32, "optimization": OptimizationConfig(num_threads=1, quantization=quantization)}


def jobs(folder: Path) -> dict[str, Job]:
    """Dense, quantized and MoE models, and one with an adapter."""
    qwen3 = write_checkpoint(folder / "qwen3", QWEN3)

    def written(name: str, fields: dict[str, Any], **changes: Any) -> ExecutorConfig:
        return config(write_checkpoint(folder / name, fields), **FLOAT32, **changes)

    def quantized(form: str, shape: str = "qwen3", backend: str = "auto") -> ExecutorConfig:
        path, _ = write_quantized(folder / f"{form}-{shape}-{backend}", FORMS[form], shape)
        return config(path, **FLOAT32, attention=ExecutorAttentionConfig(4, backend))

    def of_gguf(kind: str, backend: str = "auto", merged: bool = False) -> ExecutorConfig:
        tensors = converted_checkpoint(folder / "llama", "llama")
        if merged:
            merge_all(tensors)
        name = f"{kind}-{backend}-{merged}"
        file = write_gguf(folder / f"{name}.gguf", "llama", sizes(GGUF), tensors, lambda _: kind)
        path = prepared(folder / name, file)
        return config(path, **FLOAT32, attention=ExecutorAttentionConfig(4, backend))

    write_checkpoint(folder / "llama", GGUF)
    wide = write_checkpoint(folder / "wide", {**QWEN3, "intermediate_size": 200, "head_dim": 32})
    lora = OptimizationConfig(num_threads=1, max_loras=1)
    dynamic = {"+:.*(down|k)_proj": {"bits": 8}}
    forms = {"": "gptq-64", "down_proj": "gptq-8", "k_proj": "gptq-8"}
    mixed, _ = write_mixed(folder / "mixed", {**GPTQ, "dynamic": dynamic}, forms)
    (folder / "mxfp4").mkdir()
    mxfp4, _ = in_mxfp4(folder / "mxfp4")
    return {
        "heads split, tied": (config(qwen3, **FLOAT32), ()),
        "one KV head on all ranks, biases": (written("biases", BIASES), ()),
        "windows on the last layers": (written("windows", WINDOWS), ()),
        "norms over all heads": (written("olmo2", OLMO2), ()),
        "experts and dense layers": (written("moe", MOE), ()),
        "an expert of every token": (written("shared", SHARED), ()),
        "an expert of every token, int4": (
            config(folder / "shared", **_quantized("int4")),
            (),
        ),
        "sinks, experts with biases": (written("gpt-oss", GPT_OSS), ()),
        "experts in MXFP4": (config(mxfp4, **FLOAT32), ()),
        "experts in MXFP4, float activations": (
            config(mxfp4, **FLOAT32, attention=ExecutorAttentionConfig(4, "torch")),
            (),
        ),
        "queries that grow": (written("ministral3", MINISTRAL), ()),
        "neighbours rotated": (written("glm4", GLM4), ()),
        "experts in one tensor": (
            config(experts_in_one(folder / "moe", folder / "experts-in-one"), **FLOAT32),
            (),
        ),
        "q, k and v in one tensor": (
            config(linears_in_one(folder / "biases", folder / "linears-in-one"), **FLOAT32),
            (),
        ),
        "fewer heads than ranks": (
            written("narrow", {**QWEN3, "num_attention_heads": 1, "num_key_value_heads": 1}),
            (),
        ),
        "GPTQ": (quantized("gptq-64"), ()),
        "GPTQ in another order of columns": (quantized("gptq-act-order"), ()),
        "GPTQ of 4 and 8 bits": (config(mixed, **FLOAT32), ()),
        "AWQ": (quantized("awq-32"), ()),
        "experts in 4 bits": (quantized("packed-zeros", "experts"), ()),
        "GPTQ, float activations": (quantized("gptq-64", backend="torch"), ()),
        "GPTQ in another order, float activations": (quantized("gptq-act-order", backend="torch"), ()),
        "experts in 4 bits, float activations": (quantized("packed-zeros", "experts", "torch"), ()),
        "GGUF": (of_gguf("Q8_0"), ()),
        "GGUF of merged tensors": (of_gguf("Q8_0", merged=True), ()),
        "GGUF of other blocks, float activations": (of_gguf("Q5_1", "torch"), ()),
        "int8": (config(wide, **_quantized("int8")), ()),
        "int4": (config(wide, **_quantized("int4")), ()),
        "int8, heads that are no blocks": (config(qwen3, **_quantized("int8")), ()),
        "random weights": (config(qwen3, load_format="dummy", **FLOAT32), ()),
        "adapter": (config(qwen3, **FLOAT32, optimization=lora), _adapter(qwen3, folder)),
        "GGUF adapter": (
            config(folder / "llama", **FLOAT32, optimization=lora),
            _adapter(folder / "llama", folder, "llama"),
        ),
        "tiny": (config(weights_dir(), **FLOAT32), ()),
        **{
            name: (config(build(name, folder / name).path, **FLOAT32), ()) for name in WRITTEN_BY_TRANSFORMERS
        },
    }


def _adapter(model: Path, folder: Path, arch: str = "") -> tuple[str, str, str]:
    tensors = load_file(model / "model.safetensors")
    # As wrappers write it; GGUF files have names of their own.
    prefix = "model." if arch else "model.language_model."
    targets = {
        name.removesuffix(".weight").replace("model.", prefix, 1): tuple(tensor.shape)
        for name, tensor in tensors.items()
        if name.endswith("_proj.weight")
    }
    made = write_peft(folder / "adapter", targets, rank=5, seed=3)
    (folder / "packed").mkdir(exist_ok=True)
    heads = GGUF["num_attention_heads"], GGUF["num_key_value_heads"]
    file = write_gguf_adapter(folder / "a.gguf", made, arch, 10.0, heads) if arch else folder / "adapter"
    packed = pack(file, folder / "packed", 8)
    return "a", str(packed.path), packed.digest


def _nearly_equal(found: np.ndarray, alone: np.ndarray, name: str) -> None:
    """The kernels round activations to 8 bits. A sum in another order, which differs in its last bit, may round a value to the
    next number; rows where that does not happen agree as those of floats do."""
    off = np.abs(found - alone).max(1)
    assert np.median(off) < 0.03 * alone.std() and (off < 0.3 * alone.std()).all(), f"{name}: {off}"
    assert (off < 1e-4 * max(1.0, alone.std())).sum() >= 4, f"{name}: {off}"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    return jobs(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((2, 1), id="tp2"),
        pytest.param((1, 2), id="pp2"),
        pytest.param((3, 1), id="tp3", marks=pytest.mark.long(extended=True)),
        pytest.param((2, 2), id="tp2-pp2", marks=pytest.mark.long(extended=True)),
    ],
)
async def test_logits_are_those_of_one_process(
    sizes: tuple[int, int], models: dict[str, Job], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Stages divide no tensor, so that a short run takes fewer models for them than for ranks of one stage."""
    names = part_of(pytestconfig, models, every=2 if sizes == (2, 1) else 5)
    models = {name: models[name] for name in names}
    assert any(adapter for _, adapter in models.values()) and not set(INTEGERS).isdisjoint(models)
    found = on_ranks(sizes, models, tmp_path / "ranks")
    plain = await logits_of(models["heads split, tied"][0])
    for name, (one, adapter) in models.items():
        alone = await logits_of(one, adapter)
        if name in INTEGERS:
            _nearly_equal(found[name], alone, name)
            continue
        assert alone.std() > (0.01 if name == "random weights" else 0.2), f"{name}: the logits say little"
        np.testing.assert_allclose(
            found[name], alone, atol=1e-4 * max(1.0, alone.std()), rtol=0, err_msg=name
        )
        if adapter:
            assert np.abs(alone - plain).max() > 0.1, "the adapter changes nothing"
