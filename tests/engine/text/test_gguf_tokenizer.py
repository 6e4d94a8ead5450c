"""The files made of a GGUF file's tokenizer: the same ids, tokens, templates and ends as before the conversion to GGUF."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from engine.text.gguf.pre_tokenizers import KINDS
from engine.text.gguf_tokenizer import tokenizer_files
from engine.text.tokenizer import Tokenizer
from executors.contract import ConfigError
from tests.engine.text.gguf_conversion import BYTE, CONTROL, NORMAL, USER_DEFINED, convert
from tests.engine.text.gguf_originals import BYTE_LEVEL, PRE, SENTENCEPIECE, original
from tests.engine.text.gguf_strings import strings
from tests.tiers import sweep

STRINGS = strings(2000)
Values = dict[str, Any]


def written(files: dict[str, bytes], directory: Path) -> Tokenizer:
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return Tokenizer.load(directory)


def made(metadata: Values, directory: Path) -> Tokenizer:
    return written(tokenizer_files(metadata), directory / "made")


def metadata_of(family: str, size: int = 0) -> Values:
    tokenizer, config = original(family)
    return convert(tokenizer, config, PRE.get(family, "default"), size)


def both(family: str, directory: Path) -> tuple[Tokenizer, Tokenizer]:
    """The family's stand-in, and what becomes of it on the way through GGUF with a padded vocabulary."""
    tokenizer, config = original(family)
    contents = {"tokenizer.json": tokenizer, "tokenizer_config.json": config}
    before = written({n: json.dumps(c).encode() for n, c in contents.items()}, directory / "before")
    return before, made(metadata_of(family, size=before.vocab_size + 50), directory)


@sweep(every=3)
@pytest.mark.parametrize("family", [*BYTE_LEVEL, *SENTENCEPIECE])
def test_everything_survives_the_conversion_to_gguf(family: str, tmp_path: Path) -> None:
    before, after = both(family, tmp_path)
    expected = [e.ids for e in before.raw.encode_batch(STRINGS)]
    found = [e.ids for e in after.raw.encode_batch(STRINGS)]
    different = [text for text, a, b in zip(STRINGS, expected, found, strict=True) if a != b]
    assert not different, different[:3]
    assert [after.decode(ids) for ids in expected] == [before.decode(ids) for ids in expected]
    assert after.vocab_size == before.vocab_size
    assert after.added_tokens == before.added_tokens
    special = [i for i in range(before.vocab_size) if before.is_special(i)]
    assert [i for i in range(after.vocab_size) if after.is_special(i)] == special
    assert after.special_tokens == before.special_tokens
    assert after.chat_template == before.chat_template
    assert after.eos_token_ids == {before.added_tokens["</s>"], before.added_tokens["<|im_end|>"]}
    assert after.warnings == ()


@sweep(every=3)
@pytest.mark.parametrize("family", [*BYTE_LEVEL, *SENTENCEPIECE])
def test_words_are_cut_and_merged_as_in_the_original(family: str, tmp_path: Path) -> None:
    """A trained vocabulary is small: words may differ, or a word may be taken whole, where ids do not show it."""
    before, after = both(family, tmp_path)
    for setting in ("ignore_merges", "byte_fallback", "fuse_unk", "unk_token"):
        assert getattr(after.raw.model, setting) == getattr(before.raw.model, setting)
    for text in STRINGS:
        normal, expected = (
            t.raw.normalizer.normalize_str(text) if t.raw.normalizer else text for t in (after, before)
        )
        assert normal == expected, text
        if family in BYTE_LEVEL:
            words, expected = (t.raw.pre_tokenizer.pre_tokenize_str(normal) for t in (after, before))
            assert words == expected, text


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("gpt-2", "I'm  1234 x'LL", ["I", "'m", "Ġ", "Ġ1234", "Ġx", "'", "LL"]),
        ("phi-2", "a\n\n b", ["a", "ĊĊ", "Ġb"]),
        ("olmo", "12 e\u0301", ["12", "ĠÃ©"]),
        ("starcoder", "ab 123", ["ab", "Ġ", "1", "2", "3"]),
        ("refact", "x=10", ["x", "=", "1", "0"]),
        ("command-r", "e\u03011 2", ["Ã©", "1", "Ġ", "2"]),
        ("dbrx", "x'LL 12345!\n", ["x", "'LL", "Ġ", "123", "45", "!Ċ"]),
        ("smaug-bpe", "a 1234", ["a", "Ġ", "123", "4"]),
        ("llama4", "HelloWorld's 1234", ["Hello", "World's", "Ġ", "123", "4"]),
        ("qwen35", "नमस्ते 12", ["à¤¨à¤®à¤¸à¥įà¤¤à¥ĩ", "Ġ", "1", "2"]),
        ("qwen2", "e\u0301 12", ["Ã©", "Ġ", "1", "2"]),
        ("tekken", "HelloWorld's 12/\n", ["Hello", "World", "'s", "Ġ", "1", "2", "/Ċ"]),
        ("falcon", "a,b 12345", ["a", ",", "b", "Ġ", "123", "45"]),
        ("default", "a,b 12345", ["a", ",", "b", "Ġ", "123", "45"]),
        ("deepseek-coder", "x\r\n ab, 12", ["x", "č", "Ċ", "Ġab", ",", "Ġ", "1", "2"]),
        ("deepseek-v3", "+abc 1234 日本", ["+abc", "Ġ", "123", "4", "Ġ", "æĹ¥æľ¬"]),
    ],
)
def test_kinds_of_pre_tokenizers(kind: str, text: str, words: list[str], tmp_path: Path) -> None:
    raw = made(metadata_of("gpt2") | {"tokenizer.ggml.pre": kind}, tmp_path).raw
    normal = raw.normalizer.normalize_str(text) if raw.normalizer else text
    assert [word for word, _ in raw.pre_tokenizer.pre_tokenize_str(normal)] == words


def test_unknown_kinds_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="pre: pre-tokenizer 'qwen25' is not supported") as error:
        tokenizer_files(metadata_of("gpt2") | {"tokenizer.ggml.pre": "qwen25"})
    assert str(len(KINDS)) in str(error.value) and "qwen2," in str(error.value)


@pytest.mark.parametrize("model", ["rwkv", "plamo2", "none"])
def test_unknown_models_are_refused_by_name(model: str) -> None:
    with pytest.raises(
        ConfigError, match=f"tokenizer.ggml.model: tokenizer model '{model}' is not supported"
    ):
        tokenizer_files(metadata_of("gpt2") | {"tokenizer.ggml.model": model})


def bert(lowercase: bool) -> tuple[Values, Values]:
    """A small WordPiece tokenizer: contents of tokenizer.json and tokenizer_config.json."""
    pieces = [
        "the",
        "quick",
        "un",
        "##aff",
        "##able",
        "##s",
        "!",
        "[unused1]",
        "é" if not lowercase else "e",
        "##e",
    ]
    if not lowercase:
        pieces.append("The")
    texts = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]
    special = [
        {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for i, t in enumerate(texts[:5])
    ]  # fmt: skip
    ends = [{"SpecialToken": {"id": t, "type_id": 0}} for t in ("[CLS]", "[SEP]")]
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [ends[0], {"Sequence": {"id": "A", "type_id": 0}}, ends[1]],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [texts.index(t)], "tokens": [t]} for t in ("[CLS]", "[SEP]")},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": {t: i for i, t in enumerate(texts)},
        },
    }  # fmt: skip
    config = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "cls", "sep", "pad", "mask")}
    return tokenizer, config | {"clean_up_tokenization_spaces": True}


@pytest.mark.parametrize("lowercase", [True, False])
def test_wordpiece(lowercase: bool, tmp_path: Path) -> None:
    tokenizer, config = bert(lowercase)
    contents = {"tokenizer.json": tokenizer, "tokenizer_config.json": config}
    before = written({n: json.dumps(c).encode() for n, c in contents.items()}, tmp_path / "before")
    after = made(convert(tokenizer, config, "default"), tmp_path)
    texts = [*STRINGS, "The quick unaffables!", "THE  É e\u0301 [MASK] [unused1]", "unaffable"]
    assert [after.encode(t) for t in texts] == [before.encode(t) for t in texts]
    assert after.decode(after.encode("the unaffables !")) == before.decode(before.encode("the unaffables !"))
    assert after.special_tokens == before.special_tokens


def test_bos_and_eos_around_a_text(tmp_path: Path) -> None:
    metadata = metadata_of("gpt2")
    bos, eos = (metadata[f"tokenizer.ggml.{one}_token_id"] for one in ("bos", "eos"))
    bare = made(metadata, tmp_path).encode("text", add_special_tokens=False)
    for add_bos, add_eos in ((True, True), (False, True), (False, False)):
        flags = {"tokenizer.ggml.add_bos_token": add_bos, "tokenizer.ggml.add_eos_token": add_eos}
        assert made(metadata | flags, tmp_path).encode("text") == [bos] * add_bos + bare + [eos] * add_eos
    del metadata["tokenizer.ggml.add_bos_token"]
    assert made(metadata, tmp_path).encode("text") == bare
    assert made(metadata | {"tokenizer.ggml.pre": "llama-bpe"}, tmp_path).encode("text")[0] == bos


def test_ends_of_answers(tmp_path: Path) -> None:
    def ends(texts: dict[str, int], more: Values) -> list[str]:
        metadata = metadata_of("gpt2")
        metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *texts]
        types = [*metadata["tokenizer.ggml.token_type"], *texts.values()]
        tokenizer = made(metadata | {"tokenizer.ggml.token_type": types} | more, tmp_path)
        return sorted(tokenizer.token_string(i) for i in tokenizer.eos_token_ids)

    common = ["</s>", "<|im_end|>"]
    texts = {"<|end|>": CONTROL, "<|file_sep|>": CONTROL, "<|eom_id|>": USER_DEFINED, "<end_of_turn>": NORMAL}
    assert ends(texts, {}) == sorted([*common, "<|end|>", "<|eom_id|>"])
    assert ends(texts, {"tokenizer.chat_template": "<end_of_turn>"}) == sorted(
        ["</s>", "<|im_end|>", "<|end|>", "<|eom_id|>", "<end_of_turn>"]
    )
    last = len(metadata_of("gpt2")["tokenizer.ggml.tokens"])
    assert ends({"<stop>": NORMAL}, {"tokenizer.ggml.eot_token_id": np.uint32(last)}) == sorted(
        [*common, "<stop>"]
    )
    harmony = {"<|end|>": CONTROL, "<|return|>": CONTROL, "<|call|>": CONTROL}
    assert ends(harmony, {}) == sorted([*common, "<|call|>", "<|return|>"])


def test_templates_sampling_and_length(tmp_path: Path) -> None:
    more = {
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.chat_templates": ["tool_use"],
        "general.sampling.temp": np.float32(0.5),
        "general.sampling.top_k": 20,
        "general.sampling.penalty_repeat": 1.1,
    }
    files = tokenizer_files(metadata_of("gpt2") | more)
    tokenizer = written(files, tmp_path / "made")
    assert tokenizer.chat_template == {"default": "{{ messages[0].content }}<|im_end|>", "tool_use": "tools"}
    config = tokenizer.generation_config
    assert (config["temperature"], config["top_k"], config["repetition_penalty"]) == (0.5, 20, 1.1)
    assert tokenizer.config["model_max_length"] == 4096


def test_tokens_that_conversion_made_special_are_shown_again(tmp_path: Path) -> None:
    metadata = metadata_of("gpt2")
    texts = ["<unused3>", "<|fim_prefix|>", "<｜tool▁calls▁begin｜>", "<|secret|>"]
    start = len(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *texts]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *[CONTROL] * 4]
    tokenizer = made(metadata, tmp_path)
    assert tokenizer.encode("".join(texts), add_special_tokens=False) == list(range(start, start + 4))
    assert tokenizer.decode(range(start, start + 4)) == "".join(texts[:3])


def test_empty_tokens(tmp_path: Path) -> None:
    metadata = metadata_of("llama2")
    plain = made(metadata, tmp_path)
    expected = [plain.encode(text) for text in STRINGS[:50]]
    for key, more in (("tokens", ["", "", ""]), ("token_type", [NORMAL] * 3), ("scores", [-9.0] * 3)):
        metadata[T + key] = [*metadata[T + key], *more]
    tokenizer = made(metadata, tmp_path)
    assert [tokenizer.encode(text) for text in STRINGS[:50]] == expected
    last = tokenizer.vocab_size - 1
    assert [tokenizer.token_string(i) for i in (last - 2, last)] == ["", f"[EMPTY_{last}]"]


def test_phi3_tokens_take_the_space_behind_them(tmp_path: Path) -> None:
    metadata = metadata_of("llama2")
    plain, phi3 = made(metadata, tmp_path), made(metadata | {"general.architecture": "phi3"}, tmp_path)
    text, bare = "<|im_end|> \n<s> x", "<|im_end|><s> x"
    assert phi3.encode(text) == phi3.encode(bare) == plain.encode(bare) != plain.encode(text)


def test_listed_merges_of_a_sentencepiece_vocabulary_are_taken(tmp_path: Path) -> None:
    metadata = metadata_of("llama2")
    merges = json.loads(tokenizer_files(metadata)["tokenizer.json"])["model"]["merges"]
    derived = made(metadata, tmp_path)
    expected = [derived.encode(text) for text in STRINGS]
    del metadata["tokenizer.ggml.scores"]
    tokenizer = made(metadata | {"tokenizer.ggml.merges": merges}, tmp_path)
    assert [tokenizer.encode(text) for text in STRINGS] == expected


def test_arrays_lists_and_tuples_mean_the_same() -> None:
    metadata = metadata_of("llama2")
    expected = tokenizer_files(metadata)
    types, scores = metadata["tokenizer.ggml.token_type"], metadata["tokenizer.ggml.scores"]
    assert BYTE in types
    for kind in (list, tuple, np.array):
        texts = (
            kind(metadata["tokenizer.ggml.tokens"])
            if kind is not np.array
            else metadata["tokenizer.ggml.tokens"]
        )
        values = {
            "tokens": texts, "token_type": kind(types.tolist()), "scores": kind(scores.tolist()),
            "bos_token_id": np.uint32(metadata["tokenizer.ggml.bos_token_id"]), "add_bos_token": np.bool_(True),
        }  # fmt: skip
        assert tokenizer_files(metadata | {f"tokenizer.ggml.{k}": v for k, v in values.items()}) == expected


def test_a_merge_whose_token_begins_with_a_space(tmp_path: Path) -> None:
    metadata = metadata_of("gpt2")
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], " a", " ab"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], NORMAL, NORMAL]
    expected = made(metadata, tmp_path).encode("abc")
    metadata["tokenizer.ggml.merges"] = [*metadata["tokenizer.ggml.merges"], " a b"]
    assert made(metadata, tmp_path).encode("abc") == expected


T = "tokenizer.ggml."
LONG = 10 << 20


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("gpt2", "model", None),
        ("gpt2", "model", 3),
        ("gpt2", "model", "x" * LONG),
        ("gpt2", "pre", ["gpt-2"]),
        ("gpt2", "pre", "gpt-2\n"),
        ("gpt2", "tokens", None),
        ("gpt2", "tokens", []),
        ("gpt2", "tokens", "abc"),
        ("gpt2", "tokens", 7),
        ("gpt2", "tokens", {"a": 1}),
        ("gpt2", "tokens", ["a", 3, None]),
        ("gpt2", "tokens", ["a", b"b"]),
        ("gpt2", "tokens", ["a", ["b"]]),
        ("gpt2", "tokens", np.zeros(4)),
        ("gpt2", "tokens", np.zeros((2, 2))),
        ("gpt2", "tokens", lambda old: [*old[:-1], old[0]]),
        ("gpt2", "tokens", lambda old: [*old[:-1], "x" * LONG]),
        ("gpt2", "tokens", ["x"] * (1 << 20) + ["y"]),
        ("gpt2", "token_type", lambda old: [*old[:-1], float("nan")]),
        ("gpt2", "token_type", lambda old: [*old[:-1], "1"]),
        ("gpt2", "token_type", lambda old: [*old[:-1], None]),
        ("gpt2", "token_type", lambda old: [*old[:-1], [1]]),
        ("gpt2", "token_type", lambda old: [*old[:-1], 1 << 70]),
        ("gpt2", "token_type", 5),
        ("gpt2", "merges", None),
        ("gpt2", "merges", ["ab"]),
        ("gpt2", "merges", ["a "]),
        ("gpt2", "merges", [" a"]),
        ("gpt2", "merges", [""]),
        ("gpt2", "merges", ["a b c"] * 20),
        ("gpt2", "merges", ["a", 5]),
        ("gpt2", "merges", [["a", "b"]]),
        ("gpt2", "merges", [f"q {'q' * i}" for i in range(20, 40)]),
        ("gpt2", "merges", lambda old: old * 3000),
        ("gpt2", "eos_token_id", "2"),
        ("gpt2", "eos_token_id", 2.0),
        ("gpt2", "eos_token_id", True),
        ("gpt2", "eot_token_id", [2]),
        ("gpt2", "add_bos_token", "yes"),
        ("gpt2", "add_eos_token", 1),
        ("llama2", "scores", None),
        ("llama2", "scores", [0.5]),
        ("llama2", "scores", "scores"),
        ("llama2", "scores", lambda old: [*old[:-1], float("nan")]),
        ("llama2", "scores", lambda old: [*old[:-1], "0"]),
        ("llama2", "scores", lambda old: np.stack([old, old], 1)),
        ("llama2", "add_space_prefix", "no"),
        ("llama2", "tokens", lambda old: [*old[:-1], old[-2]]),
        ("bert", "tokens", lambda old: [*old[:-1], old[-2]]),
        ("bert", "normalizer.lowercase", 1),
    ],
)  # fmt: skip
def test_bad_values_are_refused_by_key(family: str, key: str, value: Any) -> None:
    metadata = convert(*bert(True), "default") if family == "bert" else metadata_of(family)
    metadata[T + key] = value(list(metadata[T + key])) if callable(value) else value
    refused_at_once(metadata, T + key)


def test_an_architecture_that_is_no_text_is_refused() -> None:
    refused_at_once(metadata_of("gpt2") | {"general.architecture": 4}, "general.architecture")


@cache
def plain_ids(family: str) -> list[int]:
    metadata = convert(*bert(True), "default") if family == "bert" else metadata_of(family)
    with TemporaryDirectory() as folder:
        return made(metadata, Path(folder)).encode("some text")


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("gpt2", T + "tokens", lambda old: [*old[:-1], "\ud800"]),
        ("gpt2", T + "tokens", lambda old: ["\udcff", *old[1:]]),
        ("llama2", T + "tokens", lambda old: [*old[:-1], "x\udc80"]),
        ("gpt2", T + "token_type", [1, 2, 3]),
        ("gpt2", T + "token_type", lambda old: [*old, 1, 1]),
        ("gpt2", T + "token_type", lambda old: [*old[:-1], 9]),
        ("llama2", T + "token_type", lambda old: [0, *old[1:]]),
        ("llama2", T + "scores", lambda old: [*old, 0.0]),
        *(
            ("gpt2", T + f"{role}_token_id", 0xFFFFFFFF)
            for role in ("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask", "cls")
        ),
        ("gpt2", T + "eos_token_id", -1),
        ("llama2", T + "eos_token_id", np.int64(1 << 40)),
        ("llama2", T + "unknown_token_id", 1 << 20),
        ("bert", T + "unknown_token_id", 99),
        ("gpt2", T + "add_eos_token", True),
        ("gpt2", "tokenizer.chat_template", "x" * LONG),
        ("gpt2", "tokenizer.chat_template", ["x"]),
        ("gpt2", "tokenizer.chat_template", "\udcff"),
        ("gpt2", "tokenizer.chat_template.tools", 4),
        ("gpt2", "llama.context_length", "long"),
        ("gpt2", "general.sampling.temp", "hot"),
        ("gpt2", "general.sampling.temp", -1.0),
        ("gpt2", "general.sampling.top_p", float("inf")),
    ],
)
def test_values_that_a_start_does_not_need_are_noted(
    family: str, key: str, value: Any, tmp_path: Path
) -> None:
    metadata = convert(*bert(True), "default") if family == "bert" else metadata_of(family)
    expected = plain_ids(family)
    metadata[key] = value(list(metadata[key])) if callable(value) else value
    if key.endswith("add_eos_token"):
        del metadata[T + "eos_token_id"]
    start = time.thread_time()
    tokenizer = made(metadata, tmp_path)
    assert time.thread_time() - start < 1
    note, *others = tokenizer.warnings  # without its bos, the file's add_bos_token is noted, too
    assert len(others) == (key == T + "bos_token_id")
    assert note.startswith(key) and "\n" not in note and len(note) < 300, note
    if key != T + "bos_token_id":
        assert tokenizer.encode("some text") == expected
    role = key.removeprefix(T).removesuffix("_token_id")
    if role in ("bos", "eos", "mask") and family == "gpt2":
        assert f"{role}_token" not in tokenizer.special_tokens


def test_a_role_that_is_left_out_falls_back_to_what_sentencepiece_has(tmp_path: Path) -> None:
    wrong = {T + f"{role}_token_id": 0xFFFFFFFF for role in ("bos", "eos", "unknown")}
    tokenizer = made(metadata_of("llama2") | wrong, tmp_path)
    assert tokenizer.special_tokens["bos_token"] == "<s>" and tokenizer.encode("a")[0] == 1
    assert len(tokenizer.warnings) == 3


def test_tokens_that_are_not_utf8_keep_the_others(tmp_path: Path) -> None:
    metadata = metadata_of("gpt2")
    size = len(metadata[T + "tokens"])
    metadata[T + "tokens"] = [*metadata[T + "tokens"], "\udcff", "\udcff", "\udc80\udc81"]
    metadata[T + "token_type"] = [*metadata[T + "token_type"], NORMAL, CONTROL, USER_DEFINED]
    metadata[T + "merges"] = [*metadata[T + "merges"], "a \udc80"]
    tokenizer, plain = made(metadata, tmp_path), made(metadata_of("gpt2"), tmp_path)
    assert tokenizer.vocab_size == size + 3
    assert [tokenizer.encode(text) for text in STRINGS[:80]] == [plain.encode(text) for text in STRINGS[:80]]
    assert tokenizer.encode(f"[INVALID_{size + 1}]") == plain.encode(f"[INVALID_{size + 1}]")


def refused_at_once(metadata: Values, key: str) -> None:
    """Within a second of this thread, in one short line that names the key."""
    start = time.thread_time()
    with pytest.raises(ConfigError) as error:
        tokenizer_files(metadata)
    assert time.thread_time() - start < 1
    message = str(error.value)
    assert message.startswith(key), message
    assert "\n" not in message and len(message) < 500


@pytest.mark.long
def test_a_large_vocabulary_is_ready_in_seconds(tmp_path: Path) -> None:
    """262,144 pieces of up to 14 characters, as many cuts as Gemma 3 has. Measured: 1.6 s of processor time on two cores."""
    draw = np.random.default_rng(0)
    texts = dict.fromkeys(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))])
    pieces = [chr(0x61 + i) for i in range(26)] + ["▁"]
    texts |= dict.fromkeys(pieces)
    while len(texts) < 262_144:
        for a, b in draw.integers(0, len(pieces), (20_000, 2)) % min(len(pieces), 9_000):
            if (text := pieces[a] + pieces[b]) not in texts and len(text) < 15 and len(texts) < 262_144:
                texts[text] = None
                pieces.append(text)
    scores = np.concatenate([np.zeros(259), -np.arange(len(texts) - 259)]).astype(np.float32)
    metadata = {
        T + "model": "llama",
        T + "tokens": list(texts),
        T + "scores": scores,
        T + "token_type": np.array([2, 3, 3, *[BYTE] * 256, *[NORMAL] * (len(texts) - 259)], np.int32),
    }
    start = time.process_time()
    tokenizer = made(metadata, tmp_path)
    spent = time.process_time() - start
    assert tokenizer.vocab_size == 262_144
    assert spent < 6, f"{spent:.1f} s"


def test_a_merge_without_effect_is_left_out(tmp_path: Path) -> None:
    """llama.cpp takes files with merges of what is no token, and benchmarks write them."""
    metadata = metadata_of("gpt2")
    texts = ("zqqz", "Hello world, zq qz")
    plain = made(metadata, tmp_path)
    wanted = [plain.encode(text) for text in texts]
    merges = [*metadata["tokenizer.ggml.merges"], "zq qz"]
    slipped = made(metadata | {"tokenizer.ggml.merges": merges}, tmp_path)
    assert [slipped.encode(text) for text in texts] == wanted
