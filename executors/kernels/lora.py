"""The structures of lora.h."""

from __future__ import annotations

import ctypes

QKV, O, GATE_UP, DOWN, RATES, WEIGHTS = range(6)  # noqa: E741
"""Places of a layer's merged weights, and their number."""
GROUP = 16
"""`LORA_GROUP`: columns of B that lie side by side."""


class LoraPart(ctypes.Structure):
    """`LoraPart` of lora.h."""

    _fields_ = [
        ("a", ctypes.c_void_p), ("b", ctypes.c_void_p), ("rank", ctypes.c_int64), ("outputs", ctypes.c_int64),
        ("begin", ctypes.c_int64), ("at", ctypes.c_int64), ("scale", ctypes.c_float),
    ]  # fmt: skip


class LoraWeight(ctypes.Structure):
    """`LoraWeight` of lora.h."""

    _fields_ = [("parts", ctypes.POINTER(LoraPart)), ("count", ctypes.c_int64), ("ranks", ctypes.c_int64)]


class LoraLayer(ctypes.Structure):
    """`LoraLayer` of lora.h."""

    _fields_ = [("weights", LoraWeight * WEIGHTS)]
