"""Tokenizer classes that take only vocabulary and merges from tokenizer.json, by the rules of transformers 5.

`AutoTokenizer` of transformers 5 takes tokenizer.json unchanged for most checkpoints. For some classes that a checkpoint names it
sets up normalizer, pre-tokenizer and decoder anew, from the class and from tokenizer_config.json (`add_prefix_space`, `legacy`).
`class_of` selects the class as `AutoTokenizer` does, `rebuild` sets a tokenizer up as the class does. For all other classes,
tokenizer.json decides, and `add_prefix_space` in tokenizer_config.json has no effect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as RawTokenizer

from engine.text.gguf.pre_tokenizers import KINDS
from engine.text.tokenizer_files import older_tokens, special_tokens, token_text

GENERIC = "TokenizersBackend"
"""The class that takes tokenizer.json unchanged."""

_BY_CLASS = {
    "Qwen2Tokenizer": "qwen2 qwen2_moe qwen2_vl qwen2_5_vl qwen2_audio qwen2_5_omni qwen3 qwen3_moe qwen3_next qwen3_vl"
    " qwen3_vl_moe qwen3_omni_moe qwen3_asr colqwen2 internvl ovis2",
    "Qwen3_5Tokenizer": "qwen3_5 qwen3_5_moe qwen3_5_text qwen3_5_moe_text qwen4_exp",
    "GemmaTokenizer": "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma t5gemma shieldgemma2",
    "GPT2Tokenizer": "gpt2 gptj gpt_neo opt codegen phi starcoder2 dbrx jais2 hyperclovax_vision_v2",
    "GPTNeoXTokenizer": "gpt_neox olmo olmoe mpt mamba mamba2 falcon_mamba",
    "CohereTokenizer": "cohere cohere2 aya_vision",
    "CodeLlamaTokenizer": "code_llama",
    GENERIC: "mistral mistral3 mixtral ministral ministral3 pixtral voxtral olmo2 olmo3 flex_olmo granite granitemoe"
    " granitemoehybrid granitemoeshared glm glm4 glm4_moe gpt_bigcode stablelm persimmon phi3 phi3_v phimoe arctic ernie4_5"
    " ernie4_5_moe internlm2 internlm3 jamba llava llava_next minicpm3 minimax_m2 nemotron kimi_linear",
}
REGISTERED = {kind: name for name, kinds in _BY_CLASS.items() for kind in kinds.split()}
"""The class that transformers registers for a `model_type`; types that are not here have none."""

DISTRUSTED = frozenset(
    "arctic ernie4_5 ernie4_5_moe hyperclovax_vision_v2 internlm2 internlm3 jamba llava llava_next minicpm3 minimax_m2 nemotron"
    " phi3 phi3_v phimoe qwen2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp".split()
)
"""Values of `model_type` whose checkpoints often name a wrong class: the registered one counts."""


@dataclass(frozen=True)
class TokenizerClass:
    """What one class sets up."""

    special: Mapping[str, str]
    """Special tokens by role where tokenizer_config.json has no such key."""
    set_up: Callable[[RawTokenizer, Mapping[str, Any]], None]
    """Sets normalizer, pre-tokenizer, decoder and the BPE model's settings of a tokenizer, from tokenizer_config.json."""
    around: bool | None = None
    """Whether the class puts bos before a text, and nothing behind it; None: the post-processor of tokenizer.json stays."""
    plain_special: bool = False
    """Whether all special tokens lose their flags (`lstrip`, ...)."""
    byte_level: bool = True
    """Whether its tokens are bytes written as characters, as in vocab.json; else they are SentencePiece's pieces."""


def class_of(raw: RawTokenizer | None, config: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """The name of the class that `AutoTokenizer` selects, without `Fast`, or GENERIC.

    `raw` is tokenizer.json, None without one; `config` is tokenizer_config.json, `model` config.json.
    """
    hub, kind, registered = _named(config, model)
    if (
        "auto_map" not in config
    ):  # code of the checkpoint's own, which is not run, switches these two checks off
        parts = raw and repr((raw.normalizer, raw.pre_tokenizer, raw.post_processor, raw.decoder))
        if parts and hub == "LlamaTokenizer" and "ByteLevel" in parts and kind not in DISTRUSTED:
            return GENERIC
        if hub and registered is not None and registered != hub:
            return GENERIC if registered == GENERIC else registered if kind in DISTRUSTED else hub
    return hub or registered or GENERIC


def class_of_words(config: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """The class that says how the words of a vocab.json are cut: the selected one, else one that the checkpoint names, else the
    selected one. transformers 5 loads such files for the selected class alone."""
    selected = class_of(None, config, model)
    hub, _, registered = _named(config, model)
    supported = (name for name in (selected, hub, registered) if name in CLASSES and CLASSES[name].byte_level)
    return next(supported, None) or selected


def _named(config: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """The class that the files name, `model_type`, and the class registered for that."""
    hub = (_text(config.get("tokenizer_class")) or _text(model.get("tokenizer_class"))).removesuffix("Fast")
    kind = _text(model.get("model_type"))
    return hub, kind, REGISTERED.get(kind)


def rebuild(raw: RawTokenizer, config: dict[str, Any], name: str) -> tuple[RawTokenizer, dict[str, Any]]:
    """A tokenizer with the vocabulary of `raw`, set up as the class `name` does it, and `config` with the class's defaults.

    `raw` and `config` themselves if no BPE class is meant. Modifies the model of `raw`. The added tokens are those of
    `added_tokens_decoder` in `config`, else those of `raw`.
    """
    chosen = CLASSES.get(name)
    if chosen is None or not isinstance(raw.model, models.BPE):
        return raw, config
    config_of_class = with_defaults(config, name)
    rebuilt = RawTokenizer(raw.model)
    chosen.set_up(rebuilt, config_of_class)
    rebuilt.post_processor = raw.post_processor
    if "added_tokens_decoder" not in config:
        with contextlib.suppress(TypeError, ValueError):  # `add_tokens` says so
            tokens = older_tokens(config) | raw.get_added_tokens_decoder()
            rebuilt.add_tokens([token for _, token in sorted(tokens.items(), key=lambda one: one[0])])
    return rebuilt, config_of_class


def with_defaults(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """`config` with the special tokens of the class `name`, which are added to a vocabulary that does not have them."""
    return {**(CLASSES[name].special if name in CLASSES else {}), **config}


def finish(raw: RawTokenizer, config: Mapping[str, Any], name: str, has_file: bool) -> None:
    """What the class does once all tokens are added: flags of special tokens, and what is put around a text. Modifies `raw`.

    `has_file`: `raw` comes from tokenizer.json. Only for other tokenizers, `add_bos_token` and `add_eos_token` of `config` count.
    """
    chosen = CLASSES.get(name) if isinstance(raw.model, models.BPE) else None
    if chosen is not None and chosen.plain_special:
        raw.add_tokens([AddedToken(text, special=True) for text in special_tokens(config).values()])
    around = None if chosen is None else chosen.around
    if not has_file:
        adds_bos = config.get("add_bos_token", around)
        _put_around(raw, config, bos=bool(adds_bos), eos=bool(config.get("add_eos_token")))
    elif around is not None:
        _put_around(raw, config, bos=around, eos=False)


def _put_around(raw: RawTokenizer, config: Mapping[str, Any], bos: bool, eos: bool) -> None:
    """Put bos before and eos behind a text, where the tokens exist."""
    texts = [
        token_text(config.get(f"{role}_token")) if adds else None
        for role, adds in (("bos", bos), ("eos", eos))
    ]
    ids = [None if text is None else raw.token_to_id(text) for text in texts]
    first, last = (text if token_id is not None else None for text, token_id in zip(texts, ids, strict=True))
    single = [*([] if first is None else [first]), "$A", *([] if last is None else [last])]
    pair = [f"{piece}:1" if piece != "$A" else "$B:1" for piece in single]
    special = {text: i for text, i in zip(texts, ids, strict=True) if text is not None and i is not None}
    raw.post_processor = processors.TemplateProcessing(
        single=single, pair=[*single, *pair], special_tokens=list(special.items())
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _bpe(raw: RawTokenizer, unk: Any = None, **settings: bool) -> None:
    """Settings of the BPE model; an unknown token that the vocabulary does not have is none."""
    text = token_text(unk)
    model: Any = raw.model
    model.unk_token = text if text is not None and raw.token_to_id(text) is not None else None
    model.dropout = None
    model.fuse_unk = settings.get("fuse_unk", False)
    model.byte_fallback = settings.get("byte_fallback", False)
    model.ignore_merges = False
    model.continuing_subword_prefix = model.end_of_word_suffix = None


def _pieces(strip: bool) -> Any:
    """The decoder of SentencePiece's pieces; `strip` takes the space before a text away."""
    steps: list[Any] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)


def _has_prefix(config: Mapping[str, Any], default: bool) -> bool:
    value = config.get("add_prefix_space")
    return default if value is None else bool(value)


def _llama(raw: RawTokenizer, config: Mapping[str, Any]) -> None:
    _bpe(raw, fuse_unk=True, byte_fallback=True)
    prefix = _has_prefix(config, True)
    scheme = "never" if not prefix else "always" if config.get("legacy") else "first"
    raw.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", prepend_scheme=scheme, split=False)
    raw.decoder = _pieces(strip=prefix)


def _code_llama(raw: RawTokenizer, config: Mapping[str, Any]) -> None:
    _bpe(raw, config.get("unk_token", "<unk>"), fuse_unk=True, byte_fallback=True)
    scheme = "first" if _has_prefix(config, True) else "never"
    raw.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", prepend_scheme=scheme, split=False)
    raw.decoder = _pieces(strip=True)


def _gemma(raw: RawTokenizer, config: Mapping[str, Any]) -> None:
    _bpe(raw, config.get("unk_token", "<unk>"), fuse_unk=True, byte_fallback=True)
    raw.normalizer = normalizers.Replace(" ", "\u2581")
    raw.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    raw.decoder = _pieces(strip=False)


def _qwen(kind: str) -> Callable[[RawTokenizer, Mapping[str, Any]], None]:
    (pattern,) = KINDS[kind].patterns

    def set_up(raw: RawTokenizer, config: Mapping[str, Any]) -> None:
        _bpe(raw)
        raw.normalizer = normalizers.NFC()
        prefix = _has_prefix(config, False)
        raw.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False),
            ]
        )
        raw.decoder = decoders.ByteLevel()

    return set_up


def _gpt2(nfc: bool = False, digits: bool = False) -> Callable[[RawTokenizer, Mapping[str, Any]], None]:
    def set_up(raw: RawTokenizer, config: Mapping[str, Any]) -> None:
        _bpe(raw)
        if nfc:
            raw.normalizer = normalizers.NFC()
        words: Any = pre_tokenizers.ByteLevel(add_prefix_space=_has_prefix(config, False))
        raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), words]) if digits else words
        raw.decoder = decoders.ByteLevel()

    return set_up


_END = "<|endoftext|>"
_QWEN_SPECIAL = {"unk_token": _END, "eos_token": _END, "pad_token": _END}
_LLAMA_SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_GPT2_SPECIAL = {"unk_token": _END, "bos_token": _END, "eos_token": _END}
_INFILL = {"prefix": "PRE", "middle": "MID", "suffix": "SUF", "eot": "EOT"}

CLASSES = {
    "LlamaTokenizer": TokenizerClass(_LLAMA_SPECIAL, _llama, byte_level=False),
    "Phi3Tokenizer": TokenizerClass(_LLAMA_SPECIAL, _llama, byte_level=False),
    "CodeLlamaTokenizer": TokenizerClass(
        _LLAMA_SPECIAL
        | {f"{role}_token": f"\u2581<{text}>" for role, text in _INFILL.items()}
        | {"fill_token": "<FILL_ME>"},
        _code_llama,
        around=True,
        byte_level=False,
    ),
    "GemmaTokenizer": TokenizerClass(
        {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>"},
        _gemma,
        byte_level=False,
    ),
    "Qwen2Tokenizer": TokenizerClass(_QWEN_SPECIAL, _qwen("qwen2"), plain_special=True),
    "Qwen3_5Tokenizer": TokenizerClass(_QWEN_SPECIAL, _qwen("qwen35")),
    "GPT2Tokenizer": TokenizerClass(_GPT2_SPECIAL, _gpt2()),
    "CodeGenTokenizer": TokenizerClass(_GPT2_SPECIAL, _gpt2()),
    "GPTNeoXTokenizer": TokenizerClass(_GPT2_SPECIAL | {"pad_token": "<|padding|>"}, _gpt2(nfc=True), around=False),
    "CohereTokenizer": TokenizerClass(
        {
            "unk_token": "<UNK>", "bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>", "pad_token": "<PAD>",
            "cls_token": "<CLS>", "sep_token": "<SEP>", "mask_token": "<MASK_TOKEN>",
        },
        _gpt2(nfc=True, digits=True),
    ),
}  # fmt: skip
"""Classes by name that checkpoints of the families here, and those fine-tuned from them, name."""

OTHERS = frozenset(
    f"{name}Tokenizer"
    for name in (
        "Albert Bart Barthez Bert BigBird Blenderbot CLIP Camembert ConvBert DPRContextEncoder DPRQuestionEncoder "
        "DPRReader Deberta DebertaV2 DistilBert Electra Esmc FNet Funnel Herbert LED Lasr LayoutLM LayoutLMv2 "
        "LayoutLMv3 LayoutXLM Longformer Luke Lxmert MBart MBart50 MLuke MPNet MarkupLM MobileBert Mvp Nllb Nougat "
        "OpenAIGPT Pegasus Reformer RemBert RoFormer Roberta SeamlessM4T Siglip2 Splinter SqueezeBert T5 Tipsv2 Udop "
        "VideoPrism Whisper XGLM XLMRoberta XLNet"
    ).split()
)
"""Classes that transformers rebuilds, too, of families that are not here: their tokenizer.json is taken as it is, with a note."""
