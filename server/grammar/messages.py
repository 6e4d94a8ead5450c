"""Messages between the server and the validating process: a length (4 bytes, little endian), then msgpack.

server                                  child
Setup                            ->
                                 <-     Hello           once the tokenizer is read
Check                            ->
                                 <-     Validation         one at a time
"""

from __future__ import annotations

import struct

import msgspec

HEADER = struct.Struct("<I")
MAX_FRAME_BYTES = 16 * 2**20


class Setup(msgspec.Struct):
    """`tokenizer` is the directory, `logits_width` the number of ids that have a logit."""

    tokenizer: str
    logits_width: int


class Hello(msgspec.Struct):
    """`refused`: why grammars cannot be enforced with this tokenizer; empty if they can."""

    refused: str = ""


class Check(msgspec.Struct):
    """A grammar as `compose.py` writes it."""

    grammar: str


class Validation(msgspec.Struct):
    """`grammar`: the grammar for the executor, with GBNF replaced by Lark. `refused`: the fault of the grammar, empty without."""

    grammar: str = ""
    refused: str = ""


def frame(message: msgspec.Struct) -> bytes:
    """A message as bytes."""
    body = msgspec.msgpack.encode(message)
    return HEADER.pack(len(body)) + body
