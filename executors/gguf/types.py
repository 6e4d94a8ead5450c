"""The types of tensors in a GGUF file: how many values a block holds, in how many bytes. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockType:
    """One type: a row is a sequence of blocks of `values` values, each stored in `num_bytes` bytes. Plain numbers are blocks of
    one value."""

    name: str
    values: int
    num_bytes: int


_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip

BY_ID = {number: BlockType(*values) for number, values in _TYPES.items()}
"""Every type by its number in the file."""

BY_NAME = {one.name: one for one in BY_ID.values()}

WITHDRAWN = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
}  # fmt: skip
"""Types that the format no longer has, by number."""

_OLLAMAS_MXFP4 = 4

FORKED = {
    133: "Q6_0", 134: "IQ1_BN", 135: "IQ2_BN", 137: "IQ2_K", 138: "IQ3_K", 139: "IQ4_K", 140: "IQ5_K", 141: "IQ6_K",
    144: "IQ4_KS", 145: "IQ2_KS", 146: "IQ4_KSS", 152: "IQ5_KS", 153: "IQ2_KT", 154: "IQ3_KT", 155: "IQ4_KT", 156: "IQ3_KS",
    157: "IQ2_KL", 158: "IQ1_KT",
}  # fmt: skip
"""Types of the fork https://github.com/ikawrakow/ik_llama.cpp, by number."""
_IN_ROWS = range(200, 400)
"""Numbers of the fork's types whose blocks are those of several rows in turn."""


def unknown_type(number: int) -> str:
    """Return what the number of a type that is not here is known to be, and which file to take instead."""
    if number == _OLLAMAS_MXFP4:
        return f"{number} (Q4_2 once, and MXFP4 in Ollama's first files of gpt-oss); pull the model anew, or take another file"
    if number in WITHDRAWN:
        cure = "take the Q4_0 file" if WITHDRAWN[number].startswith("Q4_0") else "take a file of another type"
        return f"{number} ({WITHDRAWN[number]}, which the format no longer has); {cure}"
    name = FORKED.get(number, "a type" if number in _IN_ROWS else "")
    if name:
        return f"{number} ({name} of ik_llama.cpp); take a file of a type that llama.cpp has, such as Q4_K"
    return f"{number}; take a file of a type that is known, such as Q4_K or Q8_0"
