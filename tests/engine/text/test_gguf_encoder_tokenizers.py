"""Tokenizers of encoders in GGUF files: the ids of the original for single texts, and pairs in the form of the family."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from engine.text.gguf_tokenizer import tokenizer_files
from engine.text.tokenizer import Tokenizer
from executors.contract import ConfigError
from tests.engine.text.gguf_conversion import CONTROL, NORMAL, UNKNOWN, UNUSED, convert
from tests.engine.text.gguf_strings import strings
from tests.engine.text.kinds import trained
from tests.engine.text.test_gguf_tokenizer import bert, metadata_of

STRINGS = [
    *strings(1000),
    " a  b ",
    "tab\there",
    "ａｂｃ １２",
    "",
    "   ",
    "é e\u0301",
    "<s>a</s>",
    "[SEP] x",
]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def charsmap(texts: dict[str, str]) -> bytes:
    """A compiled map of single bytes to texts, in the form of SentencePiece's: a double array of 256 units, then texts."""
    units = np.zeros(512, np.uint32)
    blob = b""
    units[0] = 256 << 10  # children of the root: 256 XOR the byte
    for place, (source, target) in enumerate(texts.items()):
        byte = source.encode()[0]
        at = 256 ^ byte
        # Its leaf lies where it points to itself XOR 0; unit 1 + place is free.
        leaf = 1 + place
        units[at] = byte | ((at ^ leaf) << 10) | 256
        units[leaf] = (1 << 31) | len(blob)
        blob += target.encode() + b"\0"
    raw = units.tobytes()
    return len(raw).to_bytes(4, "little") + raw + blob


def xlm(with_map: bool = True) -> RawTokenizer:
    """A small tokenizer in the form of XLM-RoBERTa's."""
    pieces = json.loads(trained("unigram"))["model"]["vocab"]
    vocab = [(text, 0.0) for text in SPECIAL]
    vocab += [(text, float(np.float32(score))) for text, score in pieces if text not in SPECIAL]
    raw = RawTokenizer(models.Unigram(vocab, unk_id=3, byte_fallback=False))
    if with_map:
        raw.normalizer = normalizers.Precompiled(charsmap({"Q": "kw", "\t": " "}))
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always")
    raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    raw.decoder = decoders.Metaspace(prepend_scheme="always")
    raw.add_special_tokens(SPECIAL)
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return raw


def xlm_metadata(raw: RawTokenizer, padded: int = 3) -> dict[str, Any]:
    """What llama.cpp's converter makes of it; the vocabulary is filled up with tokens that the original has not."""
    content = json.loads(raw.to_str())
    vocab = content["model"]["vocab"]
    size = len(vocab) + padded
    texts = [text for text, _ in vocab] + [f"[PAD{number}]" for number in range(len(vocab), size)]
    types = [CONTROL, CONTROL, CONTROL, UNKNOWN] + [NORMAL] * (len(vocab) - 4) + [UNUSED] * padded
    found = {
        "general.architecture": "bert",
        "bert.context_length": 512,
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": np.array([score for _, score in vocab] + [-10000.0] * padded, np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
        "tokenizer.ggml.token_type_count": 1,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
    }
    if content["normalizer"] is not None:
        raw_map = base64.b64decode(content["normalizer"]["precompiled_charsmap"])
        found["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(raw_map, np.uint8)
    return found


def loaded(metadata: dict[str, Any], directory: Path) -> Tokenizer:
    for name, content in tokenizer_files(metadata).items():
        (directory / name).write_bytes(content)
    return Tokenizer.load(directory)


def same_ids(before: RawTokenizer, after: RawTokenizer) -> None:
    expected = [one.ids for one in before.encode_batch(STRINGS)]
    found = [one.ids for one in after.encode_batch(STRINGS)]
    different = [text for text, a, b in zip(STRINGS, expected, found, strict=True) if a != b]
    assert not different, (len(different), different[:3])


@pytest.mark.parametrize("with_map", [True, False])
def test_unigram_gives_the_ids_of_the_original(with_map: bool, tmp_path: Path) -> None:
    before = xlm(with_map)
    after = loaded(xlm_metadata(before), tmp_path)
    if with_map:
        assert after.raw.encode("Q").ids == after.raw.encode("kw").ids
    same_ids(before, after.raw)
    assert after.decode(before.encode("a b").ids) == "a b"


def test_a_pair_of_xlm_roberta_has_two_separators_between_its_texts(tmp_path: Path) -> None:
    before = xlm()
    after = loaded(xlm_metadata(before), tmp_path)
    assert after.raw.encode("a b", "c").ids == before.encode("a b", "c").ids


def test_llama_cpps_defaults_hold_for_keys_that_are_missing(tmp_path: Path) -> None:
    metadata = xlm_metadata(xlm())
    for name in ("add_bos_token", "add_eos_token"):
        del metadata[f"tokenizer.ggml.{name}"]
    ids = loaded(metadata, tmp_path).raw.encode("a").ids
    assert ids[0] != 0 and ids[-1] == 2


@pytest.mark.parametrize(("merges", "prefix"), [(True, False), (False, True), (False, False)])
def test_spaces_count_as_the_keys_say(merges: bool, prefix: bool, tmp_path: Path) -> None:
    keys = {"tokenizer.ggml.remove_extra_whitespaces": merges, "tokenizer.ggml.add_space_prefix": prefix}
    raw = loaded(xlm_metadata(xlm(with_map=False)) | keys, tmp_path).raw
    text = "".join(raw.encode("  a  b", add_special_tokens=False).tokens)
    if merges:
        assert text == "a▁b"
    else:
        assert text == "▁▁a▁▁b"
    plain = "".join(raw.encode("a", add_special_tokens=False).tokens)
    assert plain == ("▁a" if prefix else "a")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokenizer.ggml.scores": None}, "scores: missing"),
        ({"tokenizer.ggml.scores": np.full(3, -1.0)}, "scores: 3 entries"),
        (
            {"tokenizer.ggml.unknown_token_id": 10**6, "tokenizer.ggml.tokens": ["a", "b"]},
            "unknown_token_id: missing",
        ),
        ({"tokenizer.ggml.precompiled_charsmap": np.arange(9, dtype=np.uint8)}, "precompiled_charsmap: its"),
        ({"tokenizer.ggml.precompiled_charsmap": ["a"]}, "precompiled_charsmap: a list"),
    ],
)
def test_faults_of_unigram_are_named(values: dict[str, Any], message: str) -> None:
    metadata = {**xlm_metadata(xlm()), **values}
    metadata = {name: value for name, value in metadata.items() if value is not None}
    if "tokenizer.ggml.tokens" in values:
        metadata |= {"tokenizer.ggml.scores": np.zeros(2), "tokenizer.ggml.token_type": np.ones(2, np.int32)}
    with pytest.raises(ConfigError, match=message):
        tokenizer_files(metadata)


def test_a_pair_of_bert_has_one_separator_between_its_texts(tmp_path: Path) -> None:
    tokenizer, config = bert(True)
    after = loaded(convert(tokenizer, config, "default"), tmp_path)
    pair = after.raw.encode("the", "quick")
    assert pair.tokens == ["[CLS]", "the", "[SEP]", "quick", "[SEP]"] and pair.type_ids == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("architecture", "between"),
    [("modern-bert", ["</s>"]), ("bert", ["</s>", "</s>"]), ("llama", ["</s>", "<s>"])],
)
def test_pairs_of_byte_level_tokenizers_are_those_of_the_family(
    architecture: str, between: list[str], tmp_path: Path
) -> None:
    flags = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    metadata = metadata_of("gpt2") | flags | {"general.architecture": architecture}
    metadata["tokenizer.ggml.eos_token_id"] = metadata["tokenizer.ggml.tokens"].index("</s>")
    metadata["tokenizer.ggml.bos_token_id"] = metadata["tokenizer.ggml.tokens"].index("<s>")
    tokens = loaded(metadata, tmp_path).raw.encode("a", "b").tokens
    assert tokens == ["<s>", "a", *between, "b", "</s>"]
