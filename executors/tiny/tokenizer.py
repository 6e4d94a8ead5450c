"""The byte-level BPE of `cohort-tiny`: frequent template words are tokens, everything else is spelled.

The BPE has no merges. With `ignore_merges` a pre-token that is in the vocabulary becomes one token, and any other falls
back to one token per byte. Digits are always single. So operands (names, made-up words, numbers) reach the model a character
per token, while the wordings around them stay short, and so does the notation of turns and calls. A space is a token of its
own: a word is the same token wherever it stands, so copying it needs no knowledge of that word.
"""

import json
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from executors.tiny.data import training_samples
from executors.tiny.data.lexicon import (
    CAPITALS,
    CITIES,
    FREQUENT_WORDS,
    FUNCTION_WORDS,
    NAMES,
    SURNAMES,
    UNKNOWN_PLACES,
    WORDS,
)
from executors.tiny.data.sample import Sample

VOCAB_SIZE = 1024
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")
TEMPLATE_FILE = Path(__file__).resolve().parent / "chat_template.jinja"

# In order: the notation that opens a turn and surrounds a call, contractions, JSON punctuation between values, the comma of a list
# of numbers, words without their space, single digits, other punctuation with its space, white space.
_PRE_TOKEN = (
    r"""(?:system|user|assistant)\n|\n\{"name": "|", "arguments": \{"?|[?)"]{0,3}\}\}\n"""
    r"""|(?<=\p{L})'(?:s|t|re|ve|m|ll|d)(?!\p{L})|["\]}]+[,:] (?=["\[{\p{N}])["\[{]*|, (?=\p{N})"""
    r"""|\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"""
)
_SAMPLES_COUNTED = 12_000


def _empty_tokenizer(vocabulary: dict[str, int]) -> Tokenizer:
    """Return a tokenizer over `vocabulary` without merges."""
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PRE_TOKEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKERS])
    return tokenizer


_SHORT = 3
"""Words of at most so many letters are spelled, but for the most frequent: users ask to repeat them, and they cost little."""


def _spelled() -> set[str]:
    """Return the words, in lower case, that never become a token of their own although they are long enough."""
    capitals = [word for pair in CAPITALS.items() for name in pair for word in name.split()]
    places = [word for place in UNKNOWN_PLACES for word in place.split()]
    return {
        word.lower() for word in (*WORDS, *FUNCTION_WORDS, *NAMES, *SURNAMES, *CITIES, *capitals, *places)
    }.difference(FREQUENT_WORDS)


def build(texts: Iterable[str]) -> Tokenizer:
    """Return a tokenizer of `VOCAB_SIZE` tokens whose whole words are the most frequent pre-tokens of `texts`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    splitter = _empty_tokenizer(dict(vocabulary)).pre_tokenizer
    counts: Counter[str] = Counter()
    for text in texts:
        for marker in (*SPECIAL, *MARKERS):
            text = text.replace(marker, "\n")
        counts.update(piece for piece, _ in splitter.pre_tokenize_str(text) if len(piece) > 1)
    spelled = _spelled()
    # What a token saves is its length less one, so long words come before short ones of the same frequency.
    ranked = sorted(counts, key=lambda piece: (-counts[piece] * (len(piece) - 1), piece))
    for piece in ranked:
        if len(vocabulary) == VOCAB_SIZE - len(SPECIAL) - len(MARKERS):
            break
        short = piece.isalpha() and len(piece) <= _SHORT and piece.lower() not in FREQUENT_WORDS
        if piece.strip("\u010a\u0120") and not short and piece.lower() not in spelled:
            vocabulary[piece] = len(vocabulary)
    return _empty_tokenizer(vocabulary)


def build_from_generator(seed: int = 0) -> Tokenizer:
    """Return the tokenizer of the shipped model."""
    stream = training_samples(seed)
    return build(render(next(stream)) for _ in range(_SAMPLES_COUNTED))


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of `token`; raises KeyError if it is not in the vocabulary."""
    index = tokenizer.token_to_id(token)
    if index is None:
        raise KeyError(token)
    return int(index)


@cache
def _template() -> Any:
    """Return the compiled chat template, with the `tojson` that transformers gives to templates."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE_FILE.read_text(encoding="utf-8"))


def render(sample: Sample, with_answer: bool = True) -> str:
    """Return `sample` as the model reads it, up to its answer, or with it."""
    prompt: str = _template().render(
        messages=sample.messages, tools=sample.tools or None, add_generation_prompt=True
    )
    return f"{prompt}{sample.answer}<|im_end|>\n" if with_answer else prompt


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into `folder`."""
    tokenizer.save(str(folder / "tokenizer.json"))
    template = TEMPLATE_FILE.read_text(encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
