"""How byte-level vocabularies cut a text into words before merging: one row for each kind that `tokenizer.ggml.pre` may name.

A GGUF file holds only the kind's name; the names are those that llama.cpp knows. The rows say what the original tokenizer.json
of such models holds, where it is known: patterns in the order in which they are applied, whether a text is brought into Unicode's
NFC first, whether a word that is a token is taken without merging. The others hold what llama.cpp does for the name.
"""

from __future__ import annotations

from difflib import get_close_matches

from engine.text.gguf.kind import Kind
from executors.contract import ConfigError

PRE = "tokenizer.ggml.pre"

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(letters: str, digits: str) -> str:
    """The pattern of cl100k and its successors: contractions, words with the character before them, digits, punctuation with
    a space before and line ends after it, white space."""
    inside = letters.strip("[]")
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?[^\s{inside}\p{{N}}]+[\r\n]*{_SPACES}"
    )


def _cased_words(contractions: str, digits: str) -> str:
    """The pattern of o200k and its successors: a word may begin with capitals and changes case once."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{before}{upper}*{lower}+{contractions}|{before}{upper}+{lower}*{contractions}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_SPACES}"
    )


_CL100K = _words(r"\p{L}", r"\p{N}{1,3}")
_FALCON = ((r"[\p{P}\$\+<=>\^~\|`]+",), (r"\p{N}+", "[0-9][0-9][0-9]"))
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    + _SPACES,
)
_CASED_LETTERS = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5"
    " 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15"
    " 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3"
    " 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139"
    " 213C-213F 2145-2149 214E 2183-2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D A680-A69B A722-A76F A771-A787"
    " A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2"
    " 118A0-118DF 1E900-1E943"
)
"""Letters with case that DeepSeek LLM's pattern lists: fewer than Unicode has."""


def _characters(ranges: str) -> str:
    """The inside of a character class."""
    pairs = [part.partition("-") for part in ranges.split()]
    return "".join(chr(int(a, 16)) + dash + (chr(int(b, 16)) if b else "") for a, dash, b in pairs)


_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_characters(_CASED_LETTERS)}]+",
    r"\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+",
    r"\s+$",
    "[一-龥ࠀ-一가-\ud7ff]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")

_PUNCTUATED = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_SPARK = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    _PUNCTUATED + r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
    r"\p{N}",
)
_AFMOE = (
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    "[一-鿿㐀-䶿\uf900-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-⿟\u0e00-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff"
    "가-\ud7af\u1100-\u11ff]+",
    _PUNCTUATED + r"| ?[\p{P}\p{S}]+[\r\n]*" + _SPACES,
)
_YOUTU = (
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
    _cased_words(_CONTRACTIONS + "?", r"\p{N}"),
)
_DEFAULT = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    "[0-9][0-9][0-9]",
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_JAIS2 = "".join(rf"|\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
)
_HAN_APART = (
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    + _CONTRACTIONS
    + r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    + _CONTRACTIONS
    + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    + _SPACES
)
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+" + _SPACES
_EXAONE_MOE = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_LINES = r"[^\n]+|[\n]+"

_GPT2 = Kind((), gpt2=True)
_STARCODER = Kind((), gpt2=True, digits=True)
_NEOX = Kind((), gpt2=True, nfc=True)
_LLAMA3 = Kind((_CL100K,), ignore_merges=True, adds_bos=True)
_QWEN_WORDS = _words(r"\p{L}", r"\p{N}")
_QWEN2 = Kind((_QWEN_WORDS,), nfc=True)
_PLAIN_QWEN2 = Kind((_QWEN_WORDS,))
_O200K_WORDS = _cased_words(_CONTRACTIONS + "?", r"\p{N}{1,3}")
_O200K = Kind((_O200K_WORDS,), ignore_merges=True)
_PLAIN_O200K = Kind((_O200K_WORDS,))
_TINY_AYA = Kind((r"\d{1,3}(?=(?:\d{3})*\b)", _O200K_WORDS))
_GEMMA4 = Kind((_LINES,), marks=True, adds_bos=True)

KINDS = {
    "default": Kind(_DEFAULT),
    "falcon": Kind(_FALCON[0], gpt2=True, after=_FALCON[1]),
    **dict.fromkeys(
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 mellum jais"
        " trillion granite-docling exaone4".split(),
        _GPT2,
    ),
    **dict.fromkeys(("olmo", "mpt", "modern-bert"), _NEOX),
    **dict.fromkeys("smollm starcoder refact codeshell exaone minerva-7b mellum2".split(), _STARCODER),
    "command-r": Kind((), gpt2=True, digits=True, nfc=True),
    **dict.fromkeys(
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano".split(), _LLAMA3
    ),
    "smaug-bpe": Kind((_CL100K,), ignore_merges=True),
    **dict.fromkeys(("dbrx", "glm4", "chatglm-bpe"), Kind((_CL100K,))),
    "jais-2": Kind((_CL100K.removesuffix(r"|\s+(?!\S)|\s+") + _JAIS2 + r"|\s",)),
    **dict.fromkeys("qwen2 deepseek-r1-qwen megrez kormo f2llmv2 stablelm2".split(), _QWEN2),
    **dict.fromkeys("hunyuan solar-open grok-2".split(), _PLAIN_QWEN2),
    "qwen35": Kind((_words(r"[\p{L}\p{M}]", r"\p{N}"),), nfc=True),
    "laguna": Kind((_LINES, _QWEN_WORDS)),
    "ufakzeka": Kind((_QWEN_WORDS.removeprefix(_CONTRACTIONS + "|"),)),
    "minicpm5": Kind((r"\p{N}{1,3}", _words(r"\p{L}", r"\p{N}+")), ignore_merges=True),
    "seed-coder": Kind((_SEED,)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), Kind((_BAILING,))),
    **dict.fromkeys(("gpt-4o", "llama4"), _O200K),
    **dict.fromkeys(("kanana2", "talkie", "minimax-m2"), _PLAIN_O200K),
    "granite-embed-multi-97m": _O200K,
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _TINY_AYA),
    "tekken": Kind((_cased_words("", r"\p{N}"),), ignore_merges=True, adds_bos=True),
    "kimi-k2": Kind((_HAN_APART,)),
    "youtu": Kind(_YOUTU, ignore_merges=True),
    "deepseek-llm": Kind(_DEEPSEEK_LLM),
    "deepseek-coder": Kind(_DEEPSEEK_CODER),
    **dict.fromkeys("deepseek-v3 hunyuan-dense joyai-llm hy_v4".split(), Kind(_DEEPSEEK_V3)),
    "spark2_5": Kind(_SPARK),
    "afmoe": Kind(_AFMOE),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), Kind((_BLOOM,))),
    "viking": Kind((_BLOOM, r"\p{N}")),
    "chameleon": Kind(_CHAMELEON, gpt2=True, adds_bos=True),
    "superbpe": Kind((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "exaone-moe": Kind((_EXAONE_MOE,)),
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m"), _GEMMA4),
    "sarvam-moe": Kind((_LINES,), marks=True),
}
"""Kinds by name. `default` stands where a conversion did not know the kind; llama.cpp cuts like this there, too."""


NOT_HERE = {
    "whitespace": "only encoders of Jina have it, which are not served",
}
"""Kinds that llama.cpp knows and that are not here, with the reason."""


def kind_named(name: str | None) -> Kind:
    """The kind that a file names; `default` for a file without the key. Raises ConfigError for an unknown one."""
    kind = KINDS.get(name or "default")
    if kind is None:
        near = get_close_matches(str(name)[:40], KINDS, n=3, cutoff=0.5) or ["llama-bpe", "qwen2", "gpt-2"]
        reason = NOT_HERE.get(
            str(name), f"supported are {len(KINDS)} names of llama.cpp, among them {', '.join(near)}"
        )
        raise ConfigError(f"{PRE}: pre-tokenizer {ascii(name)[:40]} is not supported; {reason}")
    return kind
