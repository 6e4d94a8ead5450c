"""Every name that llama.cpp knows for `tokenizer.ggml.pre`: words cut as it cuts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as RawTokenizer

from engine.text.gguf.pre_tokenizers import KINDS, NOT_HERE
from engine.text.gguf_tokenizer import tokenizer_files
from engine.text.tokenizer import Tokenizer
from executors.contract import ConfigError
from tests.engine.text.gguf_strings import SENTENCES, strings
from tests.tiers import sweep

NAMES = json.loads((Path(__file__).parent / "gguf_pre_names.json").read_text("utf-8"))["names"]
LOSSLESS = sorted(set(KINDS) - {name for name, kind in KINDS.items() if kind.nfc})


def words(name: str, text: str) -> list[str]:
    """The parts of a text that the kind makes words of."""
    steps = {"normalizer": None, "pre_tokenizer": KINDS[name].pre_tokenizer()}
    empty = {"version": "1.0", "added_tokens": [], "post_processor": None, "decoder": None}
    raw = RawTokenizer.from_str(
        json.dumps({**empty, **steps, "model": {"type": "BPE", "vocab": {}, "merges": []}})
    )
    return [text[start:end] for _, (start, end) in raw.pre_tokenizer.pre_tokenize_str(text)]


def test_every_name_of_llama_cpp_is_served_or_named() -> None:
    assert len(NAMES) > 85
    assert set(NAMES) == set(KINDS) | set(NOT_HERE)
    assert not set(KINDS) & set(NOT_HERE)


@pytest.mark.parametrize("name", NOT_HERE)
def test_names_that_are_not_here_say_why(name: str) -> None:
    with pytest.raises(ConfigError, match=NOT_HERE[name]):
        tokenizer_files(metadata(name))


@pytest.mark.parametrize(
    ("names", "text", "expected"),
    [
        ("default", "über `x`,a 12345", ["über", " `", "x", "`", ",", "a", " ", "123", "45"]),
        ("falcon3 falcon-h1 pixtral midm-2.0 lfm2 glm4 chatglm-bpe", "it'S 12345!\n", ["it", "'S", " ", "123", "45", "!\n"]),
        ("megrez stablelm2 hunyuan solar-open grok-2", "it'S 123/\n x", ["it", "'S", " ", "1", "2", "3", "/\n", " x"]),
        ("mellum gigachat a.x-4.0 exaone4 jais trillion", "it's 12\n\n x", ["it", "'s", " 12", "\n\n", " x"]),
        ("codeshell exaone minerva-7b mellum2", "a 12 b", ["a", " ", "1", "2", " b"]),
        ("deepseek-llm", "Straße, 12\r\n日本 ツ", ["Stra", "ß", "e", ",", " ", "12", "\r", "\n", "日本", " ", "ツ"]),
        ("hunyuan-dense joyai-llm hy_v4", "+abc 1234 日本", ["+abc", " ", "123", "4", " ", "日本"]),
        ("spark2_5", "a!\n\n12", ["a", "!", "\n", "\n", "1", "2"]),
        ("youtu", "한국 日本 HelloWorld's 12", ["한국", " ", "日本", " Hello", "World's", " ", "1", "2"]),
        ("bloom poro-chat gpt3-finnish", "a b, c. 12", ["a", " b", ",", " c", ".", " 12"]),
        ("viking", "a 12", ["a", " ", "1", "2"]),
        ("jais-2", "a       b", ["a", "    ", "  ", " b"]),
        ("chameleon", "a1! IMGIMGABZ\tb", ["a", "1", "!", " ", "IMGIMGABZ", "\t", "b"]),
        ("kanana2 talkie minimax-m2", "HelloWorld's 1234/\n", ["Hello", "World's", " ", "123", "4", "/\n"]),
        ("tiny_aya cohere2moe", "a 1234567 b", ["a", " ", "1", "234", "567", " b"]),
        ("superbpe", "I am 1234567 b", ["I am ", "1", "234", "567", " b"]),
        ("bailingmoe bailingmoe2 llada-moe", "it'S 12\n\n!", ["it", "'S", " ", "1", "2", "\n\n", "!"]),
        ("seed-coder", "x!\n\n12", ["x", "!", "\n\n", "1", "2"]),
        ("ufakzeka", "Ankara'da 12", ["Ankara", "'da", " ", "1", "2"]),
        ("laguna", "a \n b'S", ["a", " ", "\n", " b", "'S"]),
        ("afmoe", "a 1234567 日本 +abc", ["a", " ", "1", "234", "567", " ", "日本", " +", "abc"]),
        ("exaone-moe", "one two 12/\n", ["one two", " ", "1", "2", "/\n"]),
        ("minicpm5", "a 12345'S", ["a", " ", "123", "45", "'S"]),
        ("kimi-k2", "日本Hello世界s 1234", ["日本", "Hello", "世界", "s", " ", "123", "4"]),
        ("granite-embed-multi-97m", "HelloWorld's 1234/\n", ["Hello", "World's", " ", "123", "4", "/\n"]),
        ("gemma4 granite-embed-multi-311m sarvam-moe", "a b\n\nc", ["a b", "\n\n", "c"]),
    ],
)  # fmt: skip
def test_words_of_each_kind(names: str, text: str, expected: list[str]) -> None:
    for name in names.split():
        assert words(name, text) == expected, name


def metadata(name: str) -> dict[str, Any]:
    """A vocabulary of bytes and a few merges."""
    from tokenizers import pre_tokenizers

    if name in KINDS and KINDS[name].marks:
        tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "\n", "▁a", "\n\n"]
        merges = ["▁ a", "\n \n"]
        types = [*[6] * 256, *[1] * 6, 3]
    else:
        tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġa", "ab"]
        merges, types = ["Ġ a", "a b"], [*[1] * 258, 3]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": [*tokens, "<s>"],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens),
    }


def loaded(values: dict[str, Any], folder: Path) -> Tokenizer:
    for file, content in tokenizer_files(values).items():
        (folder / file).write_bytes(content)
    return Tokenizer.load(folder)


@sweep(every=4)
@pytest.mark.parametrize("name", LOSSLESS)
def test_texts_survive(name: str, tmp_path: Path) -> None:
    tokenizer = loaded(metadata(name), tmp_path)
    for text in strings(300):
        if "<s>" not in text:
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids) == (text.replace("▁", " ") if KINDS[name].marks else text)
    assert (tokenizer.encode("a")[0] == tokenizer.single_token("<s>")) == KINDS[name].adds_bos


def test_gemma4_has_one_way_to_cut_and_always_bos(tmp_path: Path) -> None:
    values = metadata("gemma4") | {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.add_bos_token": False}
    tokenizer = loaded(values | {"tokenizer.ggml.pre": "mystery"}, tmp_path)
    ids = tokenizer.encode(f"b a\n\nb {SENTENCES[6][0]}")
    assert [tokenizer.token_string(i) for i in ids] == [
        "<s>", "b", "▁a", "\n\n", "b", "▁", "<0xE6>", "<0x95>", "<0x8F>",
    ]  # fmt: skip
