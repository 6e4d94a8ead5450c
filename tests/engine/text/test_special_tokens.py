"""Added and special tokens, and what is put around a text: ids equal those of transformers for each way to ask for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as RawTokenizer

from engine.text.tokenizer import Tokenizer
from executors.contract import ConfigError
from tests.engine.text.kinds import trained

KINDS = ("byte_level", "sp_bpe_first", "sp_bpe_legacy", "sp_bpe_never", "unigram", "wordpiece")
BOS = "<|user|>"


def write(folder: Path, raw: RawTokenizer, config: dict[str, Any] | None) -> Path:
    raw.save(str(folder / "tokenizer.json"))
    if config is not None:
        config = {"tokenizer_class": "PreTrainedTokenizerFast"} | config
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def both(folder: Path, raw: RawTokenizer, config: dict[str, Any]) -> tuple[Tokenizer, Any]:
    from transformers import AutoTokenizer

    write(folder, raw, config)
    return Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)


def adds_bos(raw: RawTokenizer) -> RawTokenizer:
    raw.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, raw.token_to_id(BOS))]
    )
    return raw


@pytest.mark.parametrize("in_file", [True, False])
@pytest.mark.parametrize("eos", [None, False, True])
@pytest.mark.parametrize("bos", [None, False, True])
@pytest.mark.parametrize("kind", ["byte_level", "sp_bpe_first"])
def test_bos_and_eos(tmp_path: Path, kind: str, bos: bool | None, eos: bool | None, in_file: bool) -> None:
    raw = RawTokenizer.from_str(trained(kind))
    flags = {"add_bos_token": bos, "add_eos_token": eos}
    config = {"bos_token": BOS, "eos_token": "</s>"} | {k: v for k, v in flags.items() if v is not None}
    ours, theirs = both(tmp_path, adds_bos(raw) if in_file else raw, config)
    for text in ("fox", "", f"{BOS}fox</s>"):
        for add in (True, False):
            assert ours.encode(text, add) == theirs.encode(text, add_special_tokens=add), (text, add)
    ids = ours.encode("fox")
    # tokenizer.json alone decides: never two, and none is lost.
    assert ids.count(raw.token_to_id(BOS)) == in_file and ids[-1] != raw.token_to_id("</s>")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flag", ["none", "lstrip", "rstrip", "single_word", "normalized", "special"])
def test_flags_of_added_tokens(tmp_path: Path, kind: str, flag: str) -> None:
    raw = RawTokenizer.from_str(trained(kind))
    flags = {name: name == flag for name in ("lstrip", "rstrip", "single_word", "normalized")}
    token = AddedToken("MARK", **flags)
    (raw.add_special_tokens if flag == "special" else raw.add_tokens)([token])
    ours, theirs = both(tmp_path, raw, {"eos_token": "</s>"})
    mark = raw.token_to_id("MARK")
    for text in ("a MARK b", "aMARKb", "MARK", " MARK MARK ", "fox.MARK,fox", "MARKMARK 中MARK文"):
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip), text
    if flag != "normalized":  # what is found then depends on the normalizer
        assert (mark in ours.encode("aMARKb")) == (flag != "single_word")
    assert ours.is_special(mark) == (flag == "special")


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_only_the_config_knows(tmp_path: Path, kind: str) -> None:
    raw = RawTokenizer.from_str(trained(kind))
    size = raw.get_vocab_size()
    entry = {"lstrip": False, "rstrip": True, "normalized": False, "single_word": False}
    config = {
        "bos_token": "<bos>",
        "eos_token": {"__type": "AddedToken", "content": "</s>", **entry},
        "pad_token": None,
        "additional_special_tokens": ["<extra>", "</s>"],
        "added_tokens_decoder": {
            str(size + 1): {"content": "<second>", "special": True, **entry},
            str(size): {"content": "<first>", "special": False, **entry},
        },
    }
    ours, theirs = both(tmp_path, raw, config)
    assert ours.vocab_size == len(theirs)
    for token in ("<first>", "<second>", "<bos>", "<extra>", "</s>"):
        token_id = ours.raw.token_to_id(token)
        assert token_id == theirs.convert_tokens_to_ids(token) and token_id is not None
        assert ours.is_special(token_id) == (token != "<first>")
        assert ours.encode(f"a{token} fox", False) == theirs.encode(f"a{token} fox", add_special_tokens=False)


def test_older_checkpoints_have_a_map_of_special_tokens(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    raw = RawTokenizer.from_str(trained("sp_bpe_first"))
    write(tmp_path, raw, {"add_bos_token": True})
    tokens = {"bos_token": {"content": BOS, "lstrip": False}, "eos_token": "</s>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(tokens))
    ours = Tokenizer.load(tmp_path)
    assert ours.encode("fox") == AutoTokenizer.from_pretrained(tmp_path).encode("fox")
    assert ours.special_tokens == {"bos_token": BOS, "eos_token": "</s>"}
    assert ours.eos_token_ids == {raw.token_to_id("</s>")}


def test_special_tokens_written_in_the_text_can_be_plain_text(tmp_path: Path) -> None:
    raw = RawTokenizer.from_str(trained("byte_level"))
    ours, theirs = both(tmp_path, raw, {"eos_token": "</s>", "split_special_tokens": True})
    assert ours.encode("a</s>b") == theirs.encode("a</s>b")
    assert raw.token_to_id("</s>") not in ours.encode("a</s>b")


def test_what_a_file_says_about_padding_and_truncation_is_for_training(tmp_path: Path) -> None:
    raw = RawTokenizer.from_str(trained("byte_level"))
    raw.enable_padding(length=64)
    raw.enable_truncation(2)
    assert (
        Tokenizer.load(write(tmp_path, raw, {})).encode("abc" * 9)
        == RawTokenizer.from_str(trained("byte_level")).encode("abc" * 9).ids
    )


def test_names_of_tokens_for_templates(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "image_token": "<image>", "add_bos_token": True, "pad_token": "p"}
    ours, theirs = both(tmp_path, RawTokenizer.from_str(trained("byte_level")), config)
    assert ours.special_tokens == {"bos_token": "<s>", "image_token": "<image>", "pad_token": "p"}
    assert theirs.special_tokens_map.items() <= ours.special_tokens.items()


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"x": {"content": "a"}}},
        {"added_tokens_decoder": {"1": {"content": 5}}},
        {"added_tokens_decoder": ["a"]},
        {"extra_special_tokens": [5]},
    ],
)
def test_faults_are_one_line_that_names_the_file(tmp_path: Path, config: dict[str, Any]) -> None:
    write(tmp_path, RawTokenizer.from_str(trained("byte_level")), config)
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json") as raised:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(raised.value)


def test_chat_templates_of_every_place(tmp_path: Path) -> None:
    raw = RawTokenizer.from_str(trained("byte_level"))
    write(tmp_path, raw, {})
    assert Tokenizer.load(tmp_path).chat_template is None
    (tmp_path / "chat_template.json").write_text('{"chat_template": "from json"}')
    assert Tokenizer.load(tmp_path).chat_template == "from json"
    write(tmp_path, raw, {"chat_template": "from config"})
    assert Tokenizer.load(tmp_path).chat_template == "from config"
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}, {"name": 5}]
    write(tmp_path, raw, {"chat_template": named})
    assert Tokenizer.load(tmp_path).chat_template == {"default": "d", "tool_use": "t"}
    write(tmp_path, raw, {"chat_template": {"default": "d", "rag": "r"}})
    assert Tokenizer.load(tmp_path).chat_template == {"default": "d", "rag": "r"}


ONE: Any = "one"
LIST = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
OBJECT = {"default": "d2", "rag": "r"}


@pytest.mark.parametrize("files", [{}, {"default": "f"}, {"default": "f", "rag": "r2"}, {"rag": "r2"}])
@pytest.mark.parametrize("configured", [None, ONE, LIST, OBJECT])
def test_templates_in_every_form(tmp_path: Path, configured: Any, files: dict[str, str]) -> None:
    """Files replace what tokenizer_config.json has. The one difference: its default stays where the files have none."""
    (tmp_path / "additional_chat_templates").mkdir()
    for name, text in files.items():
        where = "chat_template" if name == "default" else f"additional_chat_templates/{name}"
        (tmp_path / f"{where}.jinja").write_text(text)
    config = {} if configured is None else {"chat_template": configured}
    ours, theirs = both(tmp_path, RawTokenizer.from_str(trained("byte_level")), config)
    expected = theirs.chat_template
    if files == {"rag": "r2"} and configured is not None:
        expected = {
            "rag": "r2",
            "default": {ONE: "one"}.get(str(configured), "d" if configured is LIST else "d2"),
        }
    assert ours.chat_template == expected


@pytest.mark.parametrize("value", ["p", {"default": "p", "rag": "q"}])
@pytest.mark.parametrize("name", ["chat_template.json", "processor_config.json"])
def test_templates_of_processors_come_last(tmp_path: Path, name: str, value: Any) -> None:
    (tmp_path / name).write_text(json.dumps({"chat_template": value}))
    raw = RawTokenizer.from_str(trained("byte_level"))
    write(tmp_path, raw, {})
    assert Tokenizer.load(tmp_path).chat_template == value
    write(tmp_path, raw, {"chat_template": LIST})
    assert Tokenizer.load(tmp_path).chat_template == {"default": "d", "tool_use": "t"}


@pytest.mark.parametrize("model_type", [None, "llama", "mistral", "phi3"])
@pytest.mark.parametrize("options", [{}, {"legacy": True}, {"legacy": False}, {"add_prefix_space": False}])
@pytest.mark.parametrize("kind", ["sp_bpe_legacy", "sp_bpe_first", "sp_bpe_always", "byte_level"])
def test_space_before_a_text_of_a_llama(
    tmp_path: Path, kind: str, options: dict[str, bool], model_type: str | None
) -> None:
    if model_type is not None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    config = {"tokenizer_class": "LlamaTokenizerFast", "eos_token": "</s>", "bos_token": "<|end|>"}
    ours, theirs = both(tmp_path, RawTokenizer.from_str(trained(kind)), config | options)
    for text in ("fox", " fox", "</s>fox", "<|end|>[I] a</s> fox  東京\nfox", "two words", ""):
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids, False) == theirs.decode(ids), text
