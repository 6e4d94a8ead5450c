"""Triton's kernels on a CPU, interpreted: slow, and right for all but products of bf16 operands."""

from __future__ import annotations

import os
from typing import Any


def prepare() -> None:
    """Before the first kernel is imported: its decorator looks at the switch."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter

    if getattr(interpreter, "_cohort_patched", False):
        return
    patch = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: Any) -> None:
        """NumPy 2.4 makes no number of an array of one element, as which the interpreter keeps scalars."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
    interpreter._cohort_patched = True
