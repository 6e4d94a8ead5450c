"""Which served architecture is nearest to one that is not, and what that one needs that is not here. No torch here.

The table goes by the beginnings of names. Those of Hugging Face's classes (`Qwen3_5ForConditionalGeneration`), of its
`model_type` (`qwen3_5`) and of GGUF's `general.architecture` (`qwen35`) are compared in lower case, without signs and without the
ending that names a head. Of several beginnings the longest decides. A name that begins with none gets the row of one that it
contains or is most like.
"""

from __future__ import annotations

import difflib
import re
from functools import cache

EXAMPLES = {
    "LlamaForCausalLM": "meta-llama/Llama-3.1-8B-Instruct",
    "MistralForCausalLM": "mistralai/Mistral-7B-Instruct-v0.3",
    "Mistral3ForConditionalGeneration": "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
    "Ministral3ForCausalLM": "mistralai/Devstral-2-123B-Instruct-2512",
    "MixtralForCausalLM": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "Qwen2ForCausalLM": "Qwen/Qwen2.5-7B-Instruct",
    "Qwen2MoeForCausalLM": "Qwen/Qwen1.5-MoE-A2.7B-Chat",
    "Qwen3ForCausalLM": "Qwen/Qwen3-4B",
    "Qwen3VLForConditionalGeneration": "Qwen/Qwen3-VL-4B-Instruct",
    "Qwen3MoeForCausalLM": "Qwen/Qwen3-30B-A3B-Instruct-2507",
    "GptOssForCausalLM": "openai/gpt-oss-20b",
    "Gemma2ForCausalLM": "google/gemma-2-2b-it",
    "Gemma3ForCausalLM": "google/gemma-3-1b-it",
    "Gemma3ForConditionalGeneration": "google/gemma-3-4b-it",
    "Gemma4ForCausalLM": "google/gemma-4-E2B-it",
    "Gemma4ForConditionalGeneration": "google/gemma-4-E4B-it",
    "Gemma4UnifiedForCausalLM": "google/gemma-4-12B-it",
    "Gemma4UnifiedForConditionalGeneration": "google/gemma-4-12B-it",
    "Phi3ForCausalLM": "microsoft/Phi-4-mini-instruct",
    "Glm4ForCausalLM": "zai-org/GLM-4-9B-0414",
    "Olmo2ForCausalLM": "allenai/OLMo-2-1124-7B-Instruct",
    "Olmo3ForCausalLM": "allenai/Olmo-3-7B-Instruct",
    "OlmoeForCausalLM": "allenai/OLMoE-1B-7B-0924-Instruct",
    "Exaone4ForCausalLM": "LGAI-EXAONE/EXAONE-4.0-1.2B",
    "HunYuanDenseV1ForCausalLM": "tencent/Hunyuan-4B-Instruct",
    "SmolLM3ForCausalLM": "HuggingFaceTB/SmolLM3-3B",
    "GraniteForCausalLM": "ibm-granite/granite-3.3-8b-instruct",
    "Lfm2ForCausalLM": "LiquidAI/LFM2-1.2B",
    "Lfm2MoeForCausalLM": "LiquidAI/LFM2-8B-A1B",
    "Qwen3NextForCausalLM": "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "Qwen3_5ForConditionalGeneration": "Qwen/Qwen3.5-4B",
    "Qwen3_5MoeForConditionalGeneration": "Qwen/Qwen3.5-35B-A3B",
    "GPT2LMHeadModel": "openai-community/gpt2",
}
"""A model of the hub for each architecture that a row names."""

_MAMBA = "layers of Mamba, whose state is of another kind"
_STATE = "a recurrent state of another kind"
_LATENT = "latent attention"
_SHARED = "experts that every token shares"
_BOTH_WAYS = "attention in both directions"
_ENCODER = "an encoder beside the decoder"
_PARALLEL = "attention and MLP side by side"
_ALIBI = "scores with a bias by distance (ALiBi)"
_SINKS = "attention sinks"
_DIFFUSION = "decoding by diffusion"
_SECTIONS = "rotation in three parts, by place in an image"
_MINISTRAL3, _GPT_OSS = "Ministral3ForCausalLM", "GptOssForCausalLM"
_LLAMA, _MISTRAL, _MISTRAL3 = "LlamaForCausalLM", "MistralForCausalLM", "Mistral3ForConditionalGeneration"
_LFM2, _LFM2_MOE = "Lfm2ForCausalLM", "Lfm2MoeForCausalLM"
_QWEN3_NEXT = "Qwen3NextForCausalLM"
_QWEN3_5, _QWEN3_5_MOE = "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"
_QWEN3_IMAGES, _QWEN2_MOE = "Qwen3VLForConditionalGeneration", "Qwen2MoeForCausalLM"
_MIXTRAL, _QWEN2, _QWEN3, _QWEN3_MOE = (
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)
_GEMMA2, _GEMMA3, _GEMMA3_IMAGES = "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"
_GEMMA4_IMAGES, _GEMMA4_UNIFIED_IMAGES = (
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
)
_PHI3, _OLMO2, _OLMO3, _OLMOE, _SMOLLM3 = (
    "Phi3ForCausalLM",
    "Olmo2ForCausalLM",
    "Olmo3ForCausalLM",
    "OlmoeForCausalLM",
    "SmolLM3ForCausalLM",
)
_EXAONE4, _HUNYUAN, _GRANITE, _GPT2, _GLM4 = (
    "Exaone4ForCausalLM",
    "HunYuanDenseV1ForCausalLM",
    "GraniteForCausalLM",
    "GPT2LMHeadModel",
    "Glm4ForCausalLM",
)

_ROWS: tuple[tuple[str, str, str], ...] = (
    # What is needed, the nearest that is served, beginnings of names.
    ("", _QWEN3, "qwen qwen3"),
    ("", _QWEN2, "qwen2"),
    ("", _QWEN3_MOE, "qwen3moe"),
    ("", _MIXTRAL, "mixtral"),
    ("", _GPT2, "gpt2"),
    ("", _PHI3, "phi3"),
    ("", _OLMO2, "olmo2"),
    ("parts that only its own code describes", _QWEN2, "qwen1 qwenlmhead codeqwen"),
    ("", _QWEN2_MOE, "qwen2moe qwen15moe"),
    (_SECTIONS, _QWEN2, "qwen2vl qwen25vl qwen25omni"),
    ("", _QWEN3_IMAGES, "qwen3vl"),
    ("features of images in several layers", _QWEN3_MOE, "qwen3vlmoe"),
    ("an encoder of sound", _QWEN2, "qwen2audio"),
    ("an encoder of sound", _QWEN3_MOE, "qwen3omni"),
    ("an encoder of sound", _QWEN3, "qwen3asr qwen3tts glmasr"),
    ("", _QWEN3_NEXT, "qwen3next"),
    ("", _QWEN3_5, "qwen35 qwen36"),
    ("", _QWEN3_5_MOE, "qwen35moe qwen36moe"),
    (_STATE, _QWEN3_5_MOE, "qwen4 qwen4exp"),
    ("", _GPT_OSS, "gptoss"),
    (_SINKS, _QWEN3_MOE, "flint"),
    ("several residual streams (AltUp)", _GEMMA4_IMAGES, "gemma3n"),
    ("", _GEMMA4_IMAGES, "gemma4"),
    ("", _GEMMA4_UNIFIED_IMAGES, "gemma4unified"),
    ("the states of a model that it drafts for", _GEMMA4_IMAGES, "gemma4assistant gemma4unifiedassistant"),
    (_BOTH_WAYS, _QWEN3, "gemmaembedding embeddinggemma gemma3embedding"),
    ("", _GEMMA3, "gemma gemma3"),
    ("", _GEMMA2, "gemma2 vaultgemma"),
    (_ENCODER, _GEMMA3, "t5gemma"),
    (_DIFFUSION, _GEMMA3, "diffusiongemma"),
    (_STATE, _GEMMA2, "recurrentgemma griffin"),
    ("an encoder of images before it", _GEMMA3_IMAGES, "paligemma shieldgemma2"),
    ("chunks in attention, and experts whose input is scaled", _QWEN3_MOE, "llama4"),
    ("attention to images", _LLAMA, "mllama"),
    (_BOTH_WAYS, _QWEN3, "llamaembed llamabidirectional nvembed"),
    ("", _LLAMA, "llama"),
    ("two maps of attention, of which one is subtracted", _LLAMA, "diffllama"),
    ("an encoder of images before it", _LLAMA, "llava vipllava videollava videollama idefics deepseekvl fastvlm perceptionlm"
                                             " molmo aria fuyu emu"),
    ("an encoder of images before it", _QWEN2, "internvl ovis minicpmv kosmos florence blip instructblip git janus got"),
    ("layers of different sizes", _LLAMA, "deci openelm nemotronnas llamanemotron"),
    (_SHARED, _QWEN3_MOE, "deepseek deepseekmoe"),
    (_LATENT, _QWEN3_MOE, "deepseek2 deepseek3 deepseek32 deepseek4 deepseekv deepseekocr glmdsa glmmoedsa glm4moelite glm5"
                          " axk kimi kimik2 dots3 longcat mistral4 mistrallarge4 hyv4 hunyuanv4 youtu"),
    (f"{_LATENT}, and {_STATE}", _QWEN3_5_MOE, "kimilinear bailinghybrid bailingmoe25"),
    ("rotation of neighbours in half of a head", _GLM4, "glm chatglm glmedge"),
    ("", _GLM4, "glm4"),
    (_SECTIONS, _QWEN3, "glm4v glmocr glm46v"),
    (_SHARED, _QWEN3_MOE, "glm4moe glm4vmoe"),
    ("", _LFM2, "lfm lfm2"),
    ("an encoder of images before it", _LFM2, "lfm2vl"),
    ("", _LFM2_MOE, "lfm2moe"),
    ("experts in merged tensors", _GRANITE, "granitemoe granitemoeshared"),
    (_MAMBA, _GRANITE, "granitehybrid granitemoehybrid bamba"),
    (_SINKS, _GRANITE, "graniteswa granitemoeswa"),
    ("", _GRANITE, "granite hyperclovax"),
    ("an encoder of images or sound before it", _GRANITE, "granite4vision granitespeech granitedocling hyperclovaxvision"),
    (_MAMBA, _QWEN3_5, "nemotronh"),
    (_MAMBA, _QWEN3_5_MOE, "nemotronhmoe nemotron3 nemotron3nano"),
    ("a squared ReLU, and norms of weight plus one with a bias", _LLAMA, "nemotron"),
    (_PARALLEL, _PHI3, "phi phi1 phi2 phimsft"),
    ("an encoder of images and sound before it", _PHI3, "phi4 phi4mm phi4multimodal phi3v"),
    ("routing by sparse mixing", _MIXTRAL, "phimoe phi35moe"),
    ("", _LLAMA, "exaone"),
    ("", _EXAONE4, "exaone4"),
    (_SHARED, _QWEN3_MOE, "exaonemoe"),
    ("", _OLMO3, "olmo3"),
    ("norms without weights", _OLMO2, "olmo"),
    (_STATE, _OLMO2, "olmohybrid"),
    ("", _OLMOE, "olmoe flexolmo"),
    ("", _HUNYUAN, "hunyuan hunyuandense"),
    (_SECTIONS, _HUNYUAN, "hunyuanvl"),
    (_SHARED, _QWEN3_MOE, "hunyuanmoe hunyuanv1moe hyv3"),
    ("", _MINISTRAL3, "ministral3"),
    ("windows in some layers", _MISTRAL, "ministral"),
    ("", _MISTRAL, "mistral"),
    ("", _MISTRAL3, "mistral3"),
    ("an encoder of images before it", _MISTRAL3, "pixtral"),
    ("an encoder of sound", _MISTRAL, "voxtral"),
    (_PARALLEL, _MISTRAL, "cohere commandr aya"),
    ("layer norms with a bias, and biases everywhere", _QWEN2, "starcoder2"),
    ("learned positions with one KV head", _QWEN2, "starcoder gptbigcode refact codeshell santacoder"),
    (_PARALLEL, _LLAMA, "falcon"),
    (_MAMBA, _QWEN3_5, "falconmamba falconh mamba mamba2 zamba plamo2 samba"),
    (_MAMBA, _QWEN3_5_MOE, "jamba"),
    (_STATE, _QWEN3_5, "zaya rwkv arwkv xlstm retnet hgrn lightning kolmogorov hyena stripedhyena"),
    ("layers that are computed several times", _QWEN3, "hrm"),
    ("windows in some layers", _LLAMA, "plamo3"),
    (_STATE, _QWEN3_5_MOE, "minimax"),
    ("norms over all heads, and routing with a bias of choice", _QWEN3_MOE, "minimaxm2"),
    (_BOTH_WAYS, _QWEN3, "bert albert roberta xlmroberta camembert electra deberta distilbert ernie ernieforcausal eurobert"
                         " modernbert neobert nomicbert jinabert jinaembeddings mpnet rembert rocbert roformer bigbird xmod"
                         " megatronbert data2vec xlm xlnet flaubert longformer luke mobilebert squeezebert nystromformer yoso"
                         " mra fnet funnel convbert ibert esm gte newmodel ultrabert splinter layoutlm lilt clip siglip"
                         " canine bertgeneration robertaprelayernorm altclip ultravbert neomme"),
    (_ENCODER, _QWEN3, "t5 mt5 umt5 longt5 bart mbart plbart bigbirdpegasus pegasus mvp led marian m2m nllb blenderbot"
                       " prophetnet fsmt encoderdecoder switchtransformers udop pix2struct whisper speech2text seamless"
                       " trocr visionencoderdecoder moshi musicgen bark kyutai"),
    ("factors of embeddings and layers", _GRANITE, "minicpm"),
    (_LATENT, _QWEN3, "minicpm3 plm"),
    ("merged queries, keys and values", _QWEN2, "internlm internlm2 baichuan"),
    ("", _QWEN2, "internlm3"),
    (_PARALLEL, _LLAMA, "stablelm gptneox gptj codegen persimmon"),
    ("local attention", _GPT2, "gptneo"),
    ("learned positions, and layer norms in other places", _GPT2, "opt openaigpt ctrl biogpt xglm imagegpt cpmant gpt"),
    (_ALIBI, _LLAMA, "bloom mpt jais"),
    ("fewer, finer experts behind clipped queries, keys and values", _MIXTRAL, "dbrx"),
    ("experts beside a dense layer", _MIXTRAL, "arctic grok jetmoe"),
    (_SHARED, _QWEN3_MOE, "bailingmoe bailingmoe2 dots1 afmoe ernie45moe ernie45vlmoe solar solaropen step3 step35 step3p laguna"
                          " kolibri grovemoe pangumoe muse minimaxm3 inkling"),
    (f"{_SINKS}, and heads of different sizes", _QWEN3_MOE, "mimo mimo2 mimov2"),
    ("experts that are chosen before attention", _QWEN3_MOE, "smallthinker"),
    ("", _QWEN3_MOE, "mellum beam"),
    (_DIFFUSION, _QWEN3, "dream llada rnd1 sdar"),
    (_DIFFUSION, _QWEN3_MOE, "lladamoe llada2"),
    ("rotation of neighbours", _LLAMA, "ernie45 helium"),
    (_SECTIONS, _LLAMA, "paddleocr"),
    ("an MLP without a gate, of a squared ReLU", _LLAMA, "arcee jais2"),
    ("an activation with learned parameters (xIELU)", _LLAMA, "apertus"),
    ("", _LLAMA, "seedoss cwm orion xverse plamo maincoder pangu panguembedded"
                 " yi aquila solarllama deepseekllm vicuna hyperclova"),
    ("weights of three values that are rounded as it computes", _LLAMA, "bitnet"),
    ("bytes in place of tokens", _LLAMA, "blt"),
    ("norms without weights, and a squared ReLU", _QWEN3, "nanochat"),
    ("masks that depend on values", _QWEN3, "doge"),
    ("", _SMOLLM3, "smollm"),
    ("an encoder of images before it", _SMOLLM3, "smolvlm"),
    ("images as tokens", _LLAMA, "chameleon"),
    ("experts of images", _LLAMA, "cogvlm"),
)  # fmt: skip
_ENDINGS = re.compile(
    r"(forcausallm|forconditionalgeneration|fortexttotext|forvisiontext2text|forblockdiffusion|lmheadmodel|modelwithlmhead|"
    r"decoder|mtmodel|textmodel|model|fsdp|for[a-z0-9]*classification|forquestionanswering|formaskedlm|for[a-z]*rewardmodel|text)$"
)


@cache
def _by_beginning() -> dict[str, tuple[str, str]]:
    return {begin: (need, served) for need, served, begins in _ROWS for begin in begins.split()}


def _plain(name: str) -> str:
    """Return a name in lower case, without signs, prefix and endings."""
    plain = re.sub("[^a-z0-9]", "", name.lower()).removeprefix("fsdp")
    while (shorter := _ENDINGS.sub("", plain)) not in ("", plain):
        plain = shorter
    return plain


def nearest(name: str) -> tuple[str, str]:
    """Return what an architecture needs that is not here, "" where the table does not say, and the served one that is nearest:
    a key of `EXAMPLES`. `name`: that of a Hugging Face class, a `model_type` or GGUF's."""
    rows, plain = _by_beginning(), _plain(name[:80])
    fitting = [begin for begin in rows if plain.startswith(begin)]
    within = [begin for begin in rows if len(begin) > 3 and begin in plain]  # TinyLlama
    if fitting or within:
        return rows[max(fitting or within, key=len)]
    alike = difflib.get_close_matches(plain, rows, 1, 0.75)
    return ("", rows[alike[0]][1]) if alike else ("", _LLAMA)


def advice(name: str) -> str:
    """Return the end of a sentence that refuses an architecture: what it needs, and which model to take instead."""
    need, served = nearest(name)
    return f"{f'it needs {need}; ' if need else ''}the nearest that is served is {served}, such as {EXAMPLES[served]}"
