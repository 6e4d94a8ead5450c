"""Directories without tokenizer.json: SentencePiece models, vocab.json with merges.txt, tiktoken's and Mistral's files."""

from __future__ import annotations

import base64
import json
import random
import struct
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models

from engine.text.sentencepiece_model import MAX_BYTES, read_model
from engine.text.tokenizer import Tokenizer, has_tokenizer
from executors.contract import ConfigError
from tests.engine.text.kinds import TEXTS, trained

DATA = json.loads((Path(__file__).parent / "sentencepiece_models.json").read_text("utf-8"))
MODELS = {name: base64.b64decode(text) for name, text in DATA["models"].items()}


def write(folder: Path, model_type: str | None = None, config: Any = None, **files: bytes) -> Path:
    """A directory with these files; `_` in a name stands for a dot."""
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if model_type is not None:
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


@pytest.mark.parametrize("number", range(len(DATA["cases"])))
def test_a_sentencepiece_model_alone(number: int, tmp_path: Path) -> None:
    case = DATA["cases"][number]
    folder = write(tmp_path, case["model_type"], case["config"], tokenizer_model=MODELS[case["model"]])
    tokenizer = Tokenizer.load(folder)
    assert has_tokenizer(folder)
    assert tokenizer.vocab_size == case["size"]
    for text, ids in zip(DATA["texts"], case["ids"], strict=True):
        assert tokenizer.encode(text) == ids, text
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json", "tokenizer.model", "tokenizer_config.json",
    ]  # fmt: skip


def test_roles_of_a_sentencepiece_model(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write(tmp_path, "mistral", tokenizer_model=MODELS["bpe"]))
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.decode(tokenizer.encode("fox é 東")) == "fox é 東"


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def part(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def piece(text: bytes, score: float = -1.0, kind: int = 1) -> bytes:
    return part(
        1, part(1, text) + varint(2 << 3 | 5) + struct.pack("<f", score) + varint(3 << 3) + varint(kind)
    )


def test_fields_of_the_protobuf_file() -> None:
    trainer = (
        varint(3 << 3) + b"\x02" + varint(35 << 3) + b"\x01" + varint(41 << 3) + varint(-1) + part(45, b"<U>")
    )
    unknown = (
        varint(99 << 3 | 1)
        + bytes(8)
        + varint(98 << 3 | 5)
        + bytes(4)
        + part(97, b"x")
        + varint(96 << 3)
        + b"\x07"
    )
    model = read_model(
        piece(b"a", -2.5, 3)
        + part(2, trainer + unknown)
        + part(3, part(2, b"\0\4\0\0" + bytes(1024)))
        + unknown
        + part(1, b"")
    )
    assert [(one.text, one.score, one.type) for one in model.pieces] == [("a", -2.5, 3), ("", 0.0, 1)]
    assert (model.model_type, model.byte_fallback, model.bos_id, model.eos_id) == (2, True, -1, 2)
    assert (model.unk_piece, model.bos_piece, model.charsmap) == ("<U>", "<s>", b"\0\4\0\0" + bytes(1024))
    assert read_model(piece(b"a")).model_type == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it has no pieces"),
        (b"\x00" * 40, "it has no pieces"),
        (piece(b"a") + b"\x0b", "a field of kind 3"),
        (piece(b"a")[:-1], "cut|no integer"),
        (part(1, part(1, b"\xff")), "piece 0: not UTF-8"),
        (piece(b"a") + piece(b"a"), "pieces 0 and 1 have the same text"),
        (piece(b"a", float("nan")), "piece 0: its score is nan"),
        (part(1, varint(1 << 3) + b"\x01"), "another kind"),
        (part(1, part(3, b"x")), "another kind"),
        (varint(1 << 3) + b"\x01", "another kind"),
        (b"\x80" * 11, "no integer at byte 0"),
        (part(1, part(1, b"x" * 5000)), "5000 bytes"),
        (piece(b"a") + varint(1 << 3 | 2) + varint(1 << 60), "bytes at byte"),
        (b"x" * (MAX_BYTES + 1), "at most"),
        (piece(b"a") + part(3, part(2, b"\0\4\0\0")), "map of characters is cut"),
        (piece(b"a") + part(3, part(2, b"\0\4\0\0" + b"\xff\x7f\0\0" * 256)), "points beyond its end"),
        (piece(b"a") + part(3, part(2, b"\0\4\0\0" + b"\0\1\0\0" * 256)), "texts that it does not hold"),
        (piece(b"a") + part(3, part(2, b"\0\4\0\0" + bytes(1024) + b"\xff")), "not UTF-8"),
        (b"<html>not a model</html>", "SentencePiece model"),
    ],
)
def test_bad_models_are_refused_in_one_line(data: bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        read_model(data)
    with pytest.raises(ConfigError, match=r"tokenizer\.model") as raised:
        Tokenizer.load(write(tmp_path, tokenizer_model=data))
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400


def test_changed_models_load_or_are_refused(tmp_path: Path) -> None:
    draw = random.Random(0)
    loaded = 0
    for _ in range(150):
        data = bytearray(MODELS["unigram"])
        for _ in range(draw.choice((1, 3, 9))):
            data[draw.randrange(len(data))] = draw.randrange(256)
        cut = bytes(data[: draw.randrange(len(data)) if draw.random() < 0.2 else None])
        start = time.thread_time()
        try:
            Tokenizer.load(write(tmp_path, tokenizer_model=cut)).encode("fox 東")
            loaded += 1
        except ConfigError as error:
            assert "\n" not in str(error)
        assert time.thread_time() - start < 2
    assert loaded


@cache
def byte_level() -> tuple[dict[str, int], list[list[str]]]:
    model = json.loads(trained("byte_level"))["model"]
    return model["vocab"], model["merges"]


def merges_of(merges: list[list[str]]) -> bytes:
    return ("#version: 0.2\n" + "\n".join(map(" ".join, merges)) + "\n").encode()


@pytest.mark.parametrize("model_type", ["gpt2", "qwen3", "llama"])
@pytest.mark.parametrize("name", ["GPT2Tokenizer", "Qwen2TokenizerFast", "GPTNeoXTokenizer", None])
def test_vocab_and_merges_alone(name: str | None, model_type: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    vocab, merges = byte_level()
    extra = {"<older>": len(vocab), "</s>": len(vocab) + 1}
    (tmp_path / "added_tokens.json").write_text(json.dumps(extra))
    config = {"eos_token": "</s>", "add_eos_token": True} | (
        {} if name is None else {"tokenizer_class": name}
    )
    write(tmp_path, model_type, config, vocab_json=json.dumps(vocab).encode(), merges_txt=merges_of(merges))
    if name is None and model_type == "llama":
        with pytest.raises(ConfigError, match=r"vocab\.json: how words are cut is not known"):
            Tokenizer.load(tmp_path)
        return
    ours, theirs = Tokenizer.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert ours.vocab_size == len(theirs)
    for text in (*TEXTS.values(), "<older> 123 it's<|endoftext|>"):
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.encode(text, False) == theirs.encode(text, add_special_tokens=False), text


def test_a_class_that_transformers_would_not_take_is_taken_from_vocab_and_merges(tmp_path: Path) -> None:
    """It finds no vocabulary for its generic class; the class that the checkpoint names says how words are cut."""
    vocab, merges = byte_level()
    files = {"vocab_json": json.dumps(vocab).encode(), "merges_txt": merges_of(merges)}
    granite = Tokenizer.load(write(tmp_path, "granite", {"tokenizer_class": "GPT2Tokenizer"}, **files))
    gpt2 = Tokenizer.load(write(tmp_path, "gpt2", {"tokenizer_class": "PreTrainedTokenizerFast"}, **files))
    for text in TEXTS.values():
        assert granite.encode(text) == gpt2.encode(text)


@pytest.mark.parametrize("merges", [b"#version: 0.2\nq", b"\xff\xfe", b"zz qq\n"])
def test_bad_merges_are_refused_in_one_line(merges: bytes, tmp_path: Path) -> None:
    write(tmp_path, "gpt2", vocab_json=json.dumps(byte_level()[0]).encode(), merges_txt=merges)
    with pytest.raises(ConfigError, match=r"vocab\.json") as raised:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(raised.value)


def order() -> list[str]:
    """The tokens of the byte-level vocabulary: the bytes, then each in the order of its merge, as ranks have it."""
    vocab, merges = byte_level()
    return [*sorted(text for text in vocab if len(text) == 1), *dict.fromkeys(a + b for a, b in merges)]


def ranked() -> list[bytes]:
    """The same as bytes."""
    return [_bytes_of(text) for text in order()]


def _bytes_of(text: str) -> bytes:
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    back = {chr(byte): byte for byte in shown}
    back |= {chr(256 + i): byte for i, byte in enumerate(b for b in range(256) if b not in shown)}
    return bytes(back[character] for character in text)


def reference(pattern: str, shift: int) -> RawTokenizer:
    """Byte-level BPE of the same tokens, by its merges."""
    from tokenizers import Regex, pre_tokenizers

    ids = {text: i + shift for i, text in enumerate(order())}
    raw = RawTokenizer(models.BPE(ids, [tuple(pair) for pair in byte_level()[1]]))
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return raw


@pytest.mark.parametrize("name", ["tokenizer.model", "tiktoken.model"])
def test_a_tiktoken_file_alone(name: str, tmp_path: Path) -> None:
    from engine.text.gguf.pre_tokenizers import KINDS

    tokens = ranked()
    lines = b"\n".join(base64.b64encode(token) + b" %d" % i for i, token in enumerate(tokens))
    special = {str(len(tokens) + 1): {"content": "<|end|>", "special": True}}
    config = {"added_tokens_decoder": special, "eos_token": "<|end|>"}
    tokenizer = Tokenizer.load(write(tmp_path, "llama", config, **{name: lines}))
    expected = reference(KINDS["llama-bpe"].patterns[0], 0)
    for text in (text for name, text in TEXTS.items() if name != "special"):
        assert tokenizer.encode(text) == expected.encode(text).ids, text
    assert tokenizer.encode("<|end|>") == [len(tokens) + 1]
    assert tokenizer.token_string(len(tokens)) == f"<|reserved_token_{len(tokens)}|>"
    with pytest.raises(ConfigError, match=rf"{name}: line 2"):
        Tokenizer.load(write(tmp_path, "llama", config, **{name: b"YQ== 0\n?? 1\n"}))


def test_a_tekken_file_alone(tmp_path: Path) -> None:
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokens = ranked()
    content = {
        "config": {
            "pattern": pattern,
            "default_vocab_size": len(tokens) + 8,
            "default_num_special_tokens": 10,
        },
        "vocab": [{"rank": i, "token_bytes": base64.b64encode(t).decode()} for i, t in enumerate(tokens)],
        "special_tokens": [
            {"rank": i, "token_str": text} for i, text in enumerate(["<unk>", "<s>", "</s>", "[INST]"])
        ],
    }
    write(
        tmp_path,
        "mistral",
        {"bos_token": "<s>", "add_bos_token": True},
        tekken_json=json.dumps(content).encode(),
    )
    tokenizer, expected = Tokenizer.load(tmp_path), reference(pattern, 10)
    for text in ("it's a fox 12", TEXTS["cyrillic"]):
        assert tokenizer.encode(text) == [1, *expected.encode(text).ids], text
    assert tokenizer.encode("[INST]", False) == [3] and tokenizer.vocab_size == len(tokens) + 8
    assert tokenizer.token_string(9) == "<SPECIAL_9>"
    del content["special_tokens"]
    with pytest.raises(ConfigError, match=r"tekken\.json: it lists no special_tokens"):
        Tokenizer.load(write(tmp_path, tekken_json=json.dumps(content).encode()))
    with pytest.raises(ConfigError, match=r"tekken\.json: not a readable vocabulary"):
        Tokenizer.load(write(tmp_path, tekken_json=b"{}"))


@pytest.mark.parametrize("name", ["vocab.txt", "spiece.model", "sentencepiece.bpe.model"])
def test_other_files_alone_are_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(
        ConfigError, match=rf"tokenizer\.json: not found.*{name} alone is not supported; save"
    ):
        Tokenizer.load(tmp_path)
    assert not has_tokenizer(tmp_path)


def test_a_class_with_a_pipeline_that_is_not_here_needs_a_tokenizer_json(tmp_path: Path) -> None:
    write(tmp_path, "llama", {"tokenizer_class": "T5Tokenizer"}, tokenizer_model=MODELS["unigram"])
    with pytest.raises(ConfigError, match=r"T5Tokenizer is not supported without a tokenizer\.json"):
        Tokenizer.load(tmp_path)
