"""Every refused architecture names the nearest that is served."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf.constants import MODEL_ARCH_NAMES
from transformers.models.auto import modeling_auto

from executors.contract import ConfigError
from executors.gguf.file import read_gguf
from executors.llm.model.architectures import find_family
from executors.llm.model.families import FAMILIES, family_of
from executors.llm.model.gguf_config import gguf_config
from executors.llm.model.nearest import _ROWS, EXAMPLES, advice, nearest
from tests.executors.gguf_files import write_gguf

_MAPPINGS = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "MODEL_MAPPING_NAMES",
)  # fmt: skip


def _hugging_face() -> list[str]:
    mapped = (one for name in _MAPPINGS for one in getattr(modeling_auto, name, {}).values())
    return sorted({name for one in mapped for name in ([one] if isinstance(one, str) else one)})


def _names_a_served_one(sentence: str, name: str) -> bool:
    _, served = nearest(name)
    return (
        family_of(served) is not None
        and f"the nearest that is served is {served}, such as {EXAMPLES[served]}" in sentence
    )


def test_every_architecture_of_transformers_is_served_or_gets_advice():
    names, types = _hugging_face(), sorted(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert len(names) > 300 and "Qwen3_5ForConditionalGeneration" in names
    refused = 0
    for values in [{"architectures": [name]} for name in names] + [{"model_type": name} for name in types]:
        try:
            find_family(values, "config.json")
        except ConfigError as error:
            refused += 1
            [name] = values.get("architectures", [values.get("model_type", "")])
            task = "its body serves embeddings" in str(error)
            assert task or _names_a_served_one(str(error), name), error
            assert "\n" not in str(error)
    assert refused > 300


def test_every_architecture_of_gguf_is_served_or_gets_advice(tmp_path: Path):
    file = read_gguf(write_gguf(tmp_path / "m.gguf", "any", {}, {}))
    refused = set()
    for arch in [*MODEL_ARCH_NAMES.values(), "gptoss", "qwen36"]:
        file.metadata["general.architecture"] = arch
        with pytest.raises(ConfigError) as error:
            gguf_config(file)
        if "general.architecture" in str(error.value) and arch != "clip":
            refused.add(arch)
            assert _names_a_served_one(str(error.value), arch), error.value
    assert "jamba" in refused and not refused & {"llama", "qwen35"} and len(refused) > 80


@pytest.mark.parametrize(
    ("names", "need", "served"),
    [
        (["qwen35", "Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM", "qwen3_5_text"],
         "", "Qwen3_5ForConditionalGeneration"),
        (["gpt-oss", "gptoss", "GptOssForCausalLM", "gpt_oss"], "", "GptOssForCausalLM"),
        (["deepseek2", "DeepseekV3ForCausalLM", "deepseek_v3", "DeepseekV32ForCausalLM"],
         "latent attention", "Qwen3MoeForCausalLM"),
        (["gemma3n", "Gemma3nForConditionalGeneration"],
         "several residual streams (AltUp)", "Gemma4ForConditionalGeneration"),
        (["gemma4", "Gemma4ForConditionalGeneration", "Gemma4TextModel"], "", "Gemma4ForConditionalGeneration"),
        (["gemma4-assistant", "Gemma4AssistantForCausalLM"], "the states of a model that it drafts for",
         "Gemma4ForConditionalGeneration"),
        (["qwen3next", "Qwen3NextForCausalLM"], "", "Qwen3NextForCausalLM"),
        (["qwen35moe", "Qwen3_5MoeForCausalLM"], "", "Qwen3_5MoeForConditionalGeneration"),
        (["falcon-h1", "FalconH1ForCausalLM", "falcon_h1", "FalconH1Model", "FalconMambaForCausalLM", "falcon_mamba"],
         "layers of Mamba, whose state is of another kind", "Qwen3_5ForConditionalGeneration"),
        (["granitehybrid", "GraniteMoeHybridForCausalLM", "granitemoehybrid", "BambaForCausalLM"],
         "layers of Mamba, whose state is of another kind", "GraniteForCausalLM"),
        (["GraniteSwaForCausalLM", "granite_swa"], "attention sinks", "GraniteForCausalLM"),
        (["nemotron_h", "NemotronHForCausalLM", "NemotronHModel"],
         "layers of Mamba, whose state is of another kind", "Qwen3_5ForConditionalGeneration"),
        (["nemotron_h_moe"], "layers of Mamba, whose state is of another kind", "Qwen3_5MoeForConditionalGeneration"),
        (["jamba", "JambaForCausalLM"],
         "layers of Mamba, whose state is of another kind", "Qwen3_5MoeForConditionalGeneration"),
        (["kimi-linear", "KimiLinearForCausalLM", "kimi_linear"],
         "latent attention, and a recurrent state of another kind", "Qwen3_5MoeForConditionalGeneration"),
        (["minimax", "MiniMaxForCausalLM", "MiniMaxText01ForCausalLM"],
         "a recurrent state of another kind", "Qwen3_5MoeForConditionalGeneration"),
        (["Glm4MoeLiteForCausalLM", "glm4_moe_lite", "glm-dsa", "KimiK2ForCausalLM", "kimi_k2"],
         "latent attention", "Qwen3MoeForCausalLM"),
        (["minicpm3", "MiniCPM3ForCausalLM"], "latent attention", "Qwen3ForCausalLM"),
        (["recurrent_gemma", "RecurrentGemmaForCausalLM"], "a recurrent state of another kind", "Gemma2ForCausalLM"),
        (["command-r", "CohereForCausalLM", "cohere2"], "attention and MLP side by side", "MistralForCausalLM"),
        (["bert", "BertModel", "modern-bert", "ModernBertForMaskedLM"], "attention in both directions", "Qwen3ForCausalLM"),
        (["mamba", "MambaForCausalLM", "Mamba2ForCausalLM", "zamba2", "plamo2"],
         "layers of Mamba, whose state is of another kind", "Qwen3_5ForConditionalGeneration"),
        (["rwkv7", "RwkvForCausalLM", "xLSTMForCausalLM"],
         "a recurrent state of another kind", "Qwen3_5ForConditionalGeneration"),
        (["lfm2", "Lfm2ForCausalLM", "Lfm2Model"], "", "Lfm2ForCausalLM"),
        (["lfm2moe", "Lfm2MoeForCausalLM"], "", "Lfm2MoeForCausalLM"),
        (["lfm2_vl", "Lfm2VlForConditionalGeneration"], "an encoder of images before it", "Lfm2ForCausalLM"),
        (["MyTinyLlamaForCausalLM", "Starlette"], "", "LlamaForCausalLM"),
        (["Phi5ForCausalLM"], "attention and MLP side by side", "Phi3ForCausalLM"),
        (["Qwen7ForCausalLM", "qwen9"], "", "Qwen3ForCausalLM"),
    ],
)  # fmt: skip
def test_names_of_one_architecture_get_the_same_words(names: list[str], need: str, served: str):
    assert {nearest(name) for name in names} == {(need, served)}
    assert len({advice(name) for name in names}) == 1


def test_the_table_names_what_is_served():
    served = {name for family in FAMILIES for name in family.architectures}
    assert {row[1] for row in _ROWS} <= EXAMPLES.keys() <= served
    begins = [begin for *_, listed in _ROWS for begin in listed.split()]
    assert len(begins) == len(set(begins))
