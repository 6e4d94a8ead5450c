"""Triton's kernels on a CPU, interpreted: slow, and right for all but products of bf16 operands."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any


def prepare() -> None:
    """Before the first kernel is imported: its decorator looks at the switch. Nothing can be compiled in this process then."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter

    if getattr(interpreter, "_cohort_patched", False):
        return
    patch_tensor, patch_language = interpreter._patch_lang_tensor, interpreter._patch_lang

    def with_index(tensor: type, scope: Any) -> None:
        """NumPy 2.4 makes no number of an array of one element, as which the interpreter keeps scalars."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    done: set[int] = set()

    def once(function: Any) -> Any:
        """The interpreter exchanges the functions of `triton.language` at each launch and at each call within a kernel, and
        puts them back after a launch: half of its time. Once does, for nobody here wants the others; and it is safe where
        threads launch side by side, who would put them back under each other."""
        modules = {id(value) for value in function.__globals__.values() if _is_language(value)}
        if not modules <= done:
            patch_language(function)
            done.update(modules)
        return interpreter._LangPatchScope()  # with nothing to put back

    interpreter._patch_lang_tensor = with_index
    interpreter._patch_lang = once
    interpreter._cohort_patched = True


def _is_language(value: object) -> bool:
    """Whether it is one of the modules whose functions the interpreter exchanges."""
    return isinstance(value, ModuleType) and value.__name__ in ("triton.language", "triton.language.core")
