"""How byte-level vocabularies cut a text into words before merging: one row for each kind that `tokenizer.ggml.pre` may name.

A GGUF file holds only the kind's name. The rows say what the original tokenizer.json of such models holds: patterns in the order
in which they are applied, whether a text is brought into Unicode's NFC first, whether a word that is a token is taken without
merging. Only kinds for which that is known are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from executors.contract import ConfigError

PRE = "tokenizer.ggml.pre"


@dataclass(frozen=True)
class Kind:
    """One way to cut texts."""

    patterns: tuple[str, ...]
    """Regular expressions (Oniguruma) whose matches become words of their own, one after the other."""
    gpt2: bool = False
    """GPT-2's pattern is applied after these (the library has it built in)."""
    digits: bool = False
    """Every digit is a word, before anything else."""
    after: tuple[str, ...] = ()
    """Patterns that are applied after GPT-2's."""
    nfc: bool = False
    ignore_merges: bool = False
    """A word that is a token is that token, whatever the merges say."""
    adds_bos: bool = False
    """The bos token precedes a text unless `tokenizer.ggml.add_bos_token` says otherwise."""

    def normalizer(self) -> dict[str, Any] | None:
        """The entry `normalizer` of tokenizer.json."""
        return {"type": "NFC"} if self.nfc else None

    def pre_tokenizer(self) -> dict[str, Any]:
        """The entry `pre_tokenizer` of tokenizer.json."""
        steps: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}] if self.digits else []
        steps += [_split(pattern) for pattern in self.patterns]
        steps.append(byte_level(use_regex=self.gpt2))
        steps += [_split(pattern) for pattern in self.after]
        return steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}


def byte_level(use_regex: bool = True) -> dict[str, Any]:
    """The step that writes bytes as characters; also the decoder, and the post-processor that changes no ids."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


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
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")

_GPT2 = Kind((), gpt2=True)
_STARCODER = Kind((), gpt2=True, digits=True)
_LLAMA3 = Kind((_CL100K,), ignore_merges=True, adds_bos=True)
_O200K = Kind((_cased_words(_CONTRACTIONS + "?", r"\p{N}{1,3}"),), ignore_merges=True)

KINDS = {
    "default": Kind(_FALCON[0], gpt2=True, after=_FALCON[1]),
    "falcon": Kind(_FALCON[0], gpt2=True, after=_FALCON[1]),
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "olmo": Kind((), gpt2=True, nfc=True),
    "smollm": _STARCODER,
    "starcoder": _STARCODER,
    "refact": _STARCODER,
    "command-r": Kind((), gpt2=True, digits=True, nfc=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": Kind((_CL100K,), ignore_merges=True),
    "dbrx": Kind((_CL100K,)),
    "qwen2": Kind((_words(r"\p{L}", r"\p{N}"),), nfc=True),
    "deepseek-r1-qwen": Kind((_words(r"\p{L}", r"\p{N}"),), nfc=True),
    "qwen35": Kind((_words(r"[\p{L}\p{M}]", r"\p{N}"),), nfc=True),
    "gpt-4o": _O200K,
    "llama4": _O200K,
    "tekken": Kind((_cased_words("", r"\p{N}"),), ignore_merges=True, adds_bos=True),
    "deepseek-coder": Kind(_DEEPSEEK_CODER),
    "deepseek-v3": Kind(_DEEPSEEK_V3),
}
"""Kinds by name. `default` stands where a conversion did not know the kind; llama.cpp cuts like this there, too."""


def kind_named(name: str | None) -> Kind:
    """The kind that a file names; `default` for a file without the key. Raises ConfigError for an unknown one."""
    kind = KINDS.get(name or "default")
    if kind is None:
        raise ConfigError(
            f"{PRE}: pre-tokenizer {ascii(name)[:40]} is not supported; supported are {', '.join(sorted(KINDS))}"
        )
    return kind
