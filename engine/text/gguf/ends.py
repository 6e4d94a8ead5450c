"""The tokens that end an answer, by the keys of a GGUF file and by the texts of its vocabulary.

The keys are those of llama.cpp and the lists that Ollama's converters write; the texts are those at which llama.cpp ends a
generation (in its vocabulary), but for the markers of files in code, which end an answer only where a key names them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.text.gguf.metadata import MAX_TEMPLATE_CHARS, Metadata, wrong

_TEMPLATE = "tokenizer.chat_template"
_NORMAL, _CONTROL = 1, 3
"""Values of `tokenizer.ggml.token_type`."""
_ONE = ("fim_pad", "fim_rep", "fim_sep")
_SEVERAL = ("eos", "eot", "eom", "eog")
_MOST = 1024
"""Longest list of ids that is read."""

END_TEXTS = frozenset(
    "<|im_end|> <|eot_id|> <|eom_id|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <turn|> <|endoftext|>"
    " <|end_of_text|> <EOT> _<EOT> [EOT] <end_of_utterance> <｜end▁of▁sentence｜>".split()
)
"""Texts that end an answer, whatever their tokens' type is."""
CONTROL_TEXTS = frozenset("</s> <eos> [EOS] <|tool_response>".split())
"""Texts that end one where their token is a control token: others may show them."""
_BETWEEN = ({"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"})
"""Sets of texts in whose vocabularies `<|end|>` ends only a part of an answer."""


def answer_ends(
    metadata: Metadata, texts: Sequence[str], types: Sequence[int], eos: Sequence[int]
) -> tuple[int, ...]:
    """Return the ids that end an answer: those of the file's keys, first `eos`, its eos, eot and eom; then those of the texts.

    Files of old converters type such a token as ordinary text; it counts where the chat template writes it. Raises ConfigError
    for a key whose value is no id.
    """
    listed = [*eos]
    for role in _SEVERAL:
        listed += _ids(metadata, f"tokenizer.ggml.{role}_token_ids")
    for role in _ONE:
        one = metadata.integer(f"tokenizer.ggml.{role}_token_id")
        listed += [] if one is None else [one]
    listed = [i for i in listed if 0 <= i < len(texts)]
    template = metadata.text(_TEMPLATE, MAX_TEMPLATE_CHARS) or ""
    by_text = [
        i
        for i, text in enumerate(texts)
        if (text in END_TEXTS and (types[i] != _NORMAL or text in template))
        or (text in CONTROL_TEXTS and types[i] == _CONTROL)
    ]
    there = {texts[i] for i in by_text}
    if any(between <= there for between in _BETWEEN):
        by_text = [i for i in by_text if texts[i] != "<|end|>"]
    if "<|tool_response>" in there:
        by_text = [i for i in by_text if texts[i] != "</s>"]
    return tuple(dict.fromkeys([*listed, *by_text]))


def _ids(metadata: Metadata, key: str) -> list[int]:
    value = metadata.values.get(key)
    ids = value.tolist() if isinstance(value, np.ndarray) else [] if value is None else value
    if not isinstance(ids, list | tuple) or len(ids) > _MOST or not all(type(i) is int for i in ids):
        raise wrong(key, f"a list of up to {_MOST} ids", value)
    return list(ids)
