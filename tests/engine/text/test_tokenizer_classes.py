"""Classes of transformers that set up their own pipeline: ids, texts and special tokens equal AutoTokenizer's."""

from __future__ import annotations

import inspect
import itertools
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as RawTokenizer

from engine.text.tokenizer import Tokenizer
from engine.text.tokenizer_classes import CLASSES, DISTRUSTED, GENERIC, OTHERS, REGISTERED
from executors.llm.model.families import FAMILIES
from tests.engine.text.kinds import trained
from tests.tiers import sweep

TEXTS = (
    "fox",
    " fox  jumps",
    "</s>fox</s> fox",
    "<s>[I] a</s> fox  東京\nfox 1234",
    "<|endoftext|> x<pad>y <mask>",
    "it's DON'T e\u0301 é two words",
    "",
)
KINDS = ("byte_level", "byte_level_split", "sp_bpe_legacy", "sp_bpe_first", "sp_bpe_never")
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"add_prefix_space": True},
    {"add_prefix_space": False},
    {"add_prefix_space": None, "legacy": True},
    {"legacy": None, "add_bos_token": True, "add_eos_token": True},
    {"unk_token": None, "pad_token": "</s>", "add_bos_token": False},
)
MODEL_TYPES = (
    None,
    "llama",
    "mistral",
    "phi3",
    "qwen2",
    "qwen3",
    "gemma2",
    "gpt2",
    "olmoe",
    "granite",
    "smollm3",
)
NAMES = (*CLASSES, "PreTrainedTokenizerFast", "PreTrainedTokenizer", "Phi3Tokenizer", None)


@cache
def prepared(kind: str, bos: bool) -> RawTokenizer:
    """The kind's tokenizer with the special tokens that classes expect, and `<s>` before a text."""
    raw = RawTokenizer.from_str(trained(kind))
    names = (
        "<s>",
        "<unk>",
        "<pad>",
        "<mask>",
        "<bos>",
        "<eos>",
        "<|endoftext|>",
        "<|padding|>",
        "\u2581<PRE>",
        "\u2581<MID>",
    )
    more = (
        "\u2581<SUF>",
        "\u2581<EOT>",
        "<FILL_ME>",
        "<UNK>",
        "<BOS_TOKEN>",
        "<|END_OF_TURN_TOKEN|>",
        "<PAD>",
        "<CLS>",
        "<SEP>",
    )
    raw.add_special_tokens([AddedToken(name, special=True) for name in (*names, *more, "<MASK_TOKEN>")])
    if bos:
        around = [("<s>", raw.token_to_id("<s>"))]
        raw.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=around
        )
    return raw  # fmt: skip


def compare(folder: Path, raw: RawTokenizer, config: dict[str, Any], model_type: str | None) -> None:
    from transformers import AutoTokenizer

    raw.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").unlink(missing_ok=True)
    if model_type is not None:
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    ours = Tokenizer.load(folder)
    try:
        theirs = AutoTokenizer.from_pretrained(folder)
        theirs.encode("".join(TEXTS))
    except Exception as error:  # null for a boolean, an unknown token that is not in the vocabulary
        assert "is not an instance of 'bool'" in str(error) or "Unk token" in str(error), error
        ours.encode("".join(TEXTS))
        return
    about = (config, model_type, type(theirs).__name__)
    for text in TEXTS:
        for add in (True, False):
            ids = theirs.encode(text, add_special_tokens=add)
            assert ours.encode(text, add) == ids, (text, add, *about)
        for skip in (True, False):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip), (
                text,
                skip,
                *about,
            )
    assert ours.vocab_size == len(theirs), about
    roles = {role: str(token) for role, token in theirs.special_tokens_map.items() if isinstance(token, str)}
    assert roles.items() <= ours.special_tokens.items(), about


CASES = list(itertools.product(NAMES, KINDS, MODEL_TYPES))


@sweep(every=24)
@pytest.mark.parametrize(("name", "kind", "model_type"), CASES)
def test_ids_of_each_class(name: str | None, kind: str, model_type: str | None, tmp_path: Path) -> None:
    named = {} if name is None else {"tokenizer_class": name}
    for i, options in enumerate(OPTIONS):
        compare(tmp_path, prepared(kind, bos=i % 2 == 0), named | options, model_type)


def test_flags_and_order_of_added_tokens(tmp_path: Path) -> None:
    """tokenizer_config.json lists fewer tokens than tokenizer.json, with gaps, and others than those it has."""
    flags = {"lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
    for kind, name in itertools.product(("byte_level", "sp_bpe_legacy"), CLASSES):
        raw = prepared(kind, bos=True)
        end, last = raw.token_to_id("</s>"), raw.get_vocab_size()
        decoder = {
            str(end): {"content": "</s>", "special": False, **flags},
            str(last + 9): {"content": "<own>", "special": False, **flags},
        }
        config = {"tokenizer_class": name, "eos_token": "</s>", "bos_token": "<s>", "unk_token": "</s>"}
        compare(tmp_path, raw, config | {"added_tokens_decoder": decoder}, "llama")
        (tmp_path / "added_tokens.json").write_text(json.dumps({"<older>": last, "<s>": 3, "</s>": end}))
        compare(tmp_path, raw, config, "llama")
        (tmp_path / "added_tokens.json").unlink()


def test_registered_classes_are_those_of_transformers() -> None:
    from transformers.models.auto import tokenization_auto as auto

    types = {kind for family in FAMILIES for kind in family.model_types}
    assert len(types) > 10
    for kind in types | set(REGISTERED):
        theirs = auto.TOKENIZER_MAPPING_NAMES.get(kind)
        ours = REGISTERED.get(kind)
        assert ours == (GENERIC if theirs == "MistralCommonBackend" else theirs), kind
        assert (kind in DISTRUSTED) == (kind in auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS), kind


def test_every_class_that_rebuilds_is_known() -> None:
    """Every class of transformers with a pipeline of its own is here, or in the table of those that are not."""
    import transformers
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    folder = Path(inspect.getfile(transformers)).parent
    sources = [path.read_text("utf-8") for path in folder.glob("models/*/tokenization_*.py")]
    names = {name for text in sources for name in re.findall(r"^class (\w+Tokenizer)\(", text, re.M)}
    rebuilt = set()
    for name in names:
        found = tokenizer_class_from_name(name)
        if isinstance(found, type) and TokenizersBackend in found.__mro__[1:] and "__init__" in vars(found):
            rebuilt.add(name)
    assert len(rebuilt) > 40
    assert rebuilt <= set(CLASSES) | OTHERS, rebuilt - set(CLASSES) - OTHERS


def test_a_class_that_is_not_here_is_noted(tmp_path: Path) -> None:
    prepared("byte_level", bos=False).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5TokenizerFast"}')
    (warning,) = Tokenizer.load(tmp_path).warnings
    assert "T5Tokenizer" in warning and "tokenizer.json decides" in warning
