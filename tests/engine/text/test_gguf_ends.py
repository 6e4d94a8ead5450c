"""Every token that a GGUF file names as an end ends the answer, and those that llama.cpp ends one at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.text.gguf.ends import answer_ends
from engine.text.gguf.metadata import Metadata
from engine.text.gguf.vocabulary import CONTROL, NORMAL, USER_DEFINED, read_vocabulary
from executors.contract import ConfigError

NAMES = ["a", "b", "c", "d", "e"]


def _ends(texts: dict[str, int], **keys: Any) -> list[str]:
    words = [*NAMES, *texts]
    metadata = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    metadata |= {
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [*[NORMAL] * 5, *texts.values()],
    }
    return [words[i] for i in read_vocabulary(Metadata(metadata), "gpt2").ends]


@pytest.mark.parametrize(
    ("keys", "ends"),
    [
        ({"eos_token_id": 1}, ["b"]),
        ({"eos_token_id": 1, "eot_token_id": 2, "eom_token_id": 3}, ["b", "c", "d"]),
        ({"eos_token_ids": [4, 0]}, ["e", "a"]),
        ({"eos_token_id": 1, "eos_token_ids": np.array([1, 3], np.int32)}, ["b", "d"]),
        ({"eos_token_ids": [], "eot_token_ids": np.array([2], np.uint32)}, ["c"]),
        ({"eos_token_ids": [1, 99, -1]}, ["b"]),
        ({"fim_pad_token_id": 0, "fim_rep_token_id": 2, "fim_sep_token_id": 3}, ["a", "c", "d"]),
        ({"fim_pre_token_id": 0, "bos_token_id": 1}, []),
    ],
)
def test_the_keys_of_a_file(keys: dict[str, Any], ends: list[str]):
    assert _ends({}, **keys) == ends


@pytest.mark.parametrize("value", ["x", 3, [1.5], ["a"], [True], np.array([0.5])])
def test_a_list_of_something_else_is_refused(value: object):
    with pytest.raises(
        ConfigError, match=r"tokenizer\.ggml\.eos_token_ids: a list of up to 1024 ids is expected"
    ):
        _ends({}, eos_token_ids=value)


@pytest.mark.parametrize(
    ("texts", "ends"),
    [
        ({"<eos>": CONTROL, "<end_of_turn>": CONTROL}, ["<eos>", "<end_of_turn>"]),
        ({"</s>": CONTROL, "<|im_end|>": USER_DEFINED}, ["</s>", "<|im_end|>"]),
        ({"</s>": USER_DEFINED, "[EOS]": NORMAL}, []),
        ({"<|eot_id|>": CONTROL, "<|eom_id|>": CONTROL, "<|end_of_text|>": CONTROL}, ["<|eot_id|>", "<|eom_id|>",
        "<|end_of_text|>"]), ({"<|end|>": CONTROL, "<|endoftext|>": CONTROL}, ["<|end|>", "<|endoftext|>"]),
        ({"<|end|>": CONTROL, "<|calls|>": CONTROL, "<|flush|>": CONTROL}, ["<|calls|>", "<|flush|>"]),
        ({"<|end|>": CONTROL, "<|call|>": CONTROL, "<|return|>": CONTROL}, ["<|call|>", "<|return|>"]),
        ({"</s>": CONTROL, "<|tool_response>": CONTROL}, ["<|tool_response>"]),
        ({"<|file_sep|>": CONTROL, "<|repo_name|>": CONTROL}, []),
    ],
)  # fmt: skip
def test_the_texts_of_a_vocabulary(texts: dict[str, int], ends: list[str]):
    assert _ends(texts) == ends


def test_ids_of_the_keys_come_first_and_once():
    assert answer_ends(
        Metadata({"tokenizer.ggml.eos_token_ids": [2, 1]}), ["</s>", "x", "y"], [3, 1, 1], [1]
    ) == (1, 2, 0)
