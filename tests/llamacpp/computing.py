"""llama.cpp's logits: a program over its library, called through the bindings that lie beside its source.

`computing.py LIBRARY_FOLDER JOB RESULT`: the job is JSON, `{"model": FILE, "context": tokens, "float32": bool, "prompts":
[[ids]], "following": [n]}`. The result is an .npz with, for prompt i, `prompt.i`, float32 [T, V], the logits at all its
positions, computed in one batch, `greedy.i`, int32 [n], the most likely ids after it, and `steps.i`, float32 [n, V], the logits
that each was taken from, computed a token at a time. With `float32` the KV cache is as wide and attention the plain one;
without, both are what its server takes by itself. Imports nothing of this project.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

GGML_TYPE_F32 = 0


def bindings(package: Path, library: Path) -> Any:
    """The module of plain bindings. The package's own __init__ imports what a test has no use for."""
    os.environ["LLAMA_CPP_LIB_PATH"] = str(library)
    stub = types.ModuleType("llama_cpp")
    stub.__path__ = [str(package)]
    sys.modules["llama_cpp"] = stub
    return importlib.import_module("llama_cpp.llama_cpp")


class Model:
    """A file with a context over it. Raises RuntimeError if llama.cpp does not load it."""

    def __init__(self, api: Any, path: str, context: int, float32: bool) -> None:
        self._api = api
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        settings = api.llama_context_default_params()
        settings.n_ctx, settings.n_batch = context, context
        settings.n_threads = settings.n_threads_batch = 1
        if float32:
            settings.type_k = settings.type_v = GGML_TYPE_F32
            settings.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = api.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError(f"llama.cpp has no context for {path}")
        self._vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._batch = api.llama_batch_init(context, 0, 1)

    def forget(self) -> None:
        """Begin a new sequence."""
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)

    def logits(self, ids: list[int], begin: int) -> np.ndarray:
        """float32 [len(ids), V] of the tokens at the positions from `begin` on. Raises RuntimeError."""
        batch = self._batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, begin + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 1
        if code := self._api.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {code}")
        rows = self._api.llama_get_logits(self._context)
        array = np.ctypeslib.as_array(
            ctypes.cast(rows, ctypes.POINTER(ctypes.c_float)), (len(ids), self._vocab_size)
        )
        return array.copy()


def computed(model: Model, prompt: list[int], following: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits of the prompt, and `following` greedy ids with the logits that each was taken from."""
    model.forget()
    rows = model.logits(prompt, 0)
    steps = np.empty((following, rows.shape[1]), np.float32)
    greedy = np.empty(following, np.int32)
    last = rows[-1]
    for i in range(following):
        steps[i], greedy[i] = last, last.argmax()
        last = model.logits([int(greedy[i])], len(prompt) + i)[0]
    return rows, greedy, steps


def main(library: str, job: str, result: str) -> None:
    given = json.loads(Path(job).read_text("utf-8"))
    package = Path(library).resolve().parents[3] / "llama_cpp"
    model = Model(
        bindings(package, Path(library).resolve()), given["model"], given["context"], given["float32"]
    )
    found: dict[str, np.ndarray] = {}
    for i, (prompt, following) in enumerate(zip(given["prompts"], given["following"], strict=True)):
        found[f"prompt.{i}"], found[f"greedy.{i}"], found[f"steps.{i}"] = computed(model, prompt, following)
    np.savez(result, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
