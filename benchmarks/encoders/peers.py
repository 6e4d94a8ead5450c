"""Texts a second of a library within one process, with each batch size: texts come in, vectors of length 1 go out.

    python -m benchmarks.encoders.peers LIBRARY MODEL FOLDER TEXTS.json REFERENCE.npy BATCHES [FORM]

LIBRARY: torch, onnxruntime or openvino; BATCHES: sizes, with commas between; FORM: only forms with this in their names.

All texts are there at once, so they are sorted by length: a batch is padded to its longest. Prints a line of JSON for each form
of the model and batch size: texts a second, the best of two runs behind one that is not counted, and the lowest cosine with
REFERENCE.npy, float32 [texts, hidden].
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoders.texts import tokenizer

Take = Callable[[list[int], dict[str, np.ndarray]], None]
"""Takes a batch: the numbers of its texts, and int64 [b, L] of each input."""


class Bench:
    """The texts, and what a library makes of them."""

    def __init__(
        self, model: Path, texts: list[str], reference: np.ndarray, batches: list[int], form: str = ""
    ) -> None:
        """`batches`: sizes that are tried. `form`: what the names of forms must have in them to be measured."""
        self._tokenizer, self._texts, self._reference = tokenizer(model), texts, reference
        self._sizes, self._form = batches, form
        self._vectors = np.zeros_like(reference)

    def keep(self, numbers: list[int], hidden: np.ndarray, mask: np.ndarray) -> None:
        """Take the hidden states float [b, L, hidden] of texts; their vectors are means of length 1."""
        weights = mask[:, :, None].astype(np.float32)
        means = (hidden * weights).sum(1) / weights.sum(1)
        self._vectors[numbers] = means / np.linalg.norm(means, axis=1, keepdims=True)

    def _batches(self, size: int) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
        ids = [one.ids for one in self._tokenizer.encode_batch(self._texts)]
        order = sorted(range(len(ids)), key=lambda number: -len(ids[number]))
        for begin in range(0, len(order), size):
            numbers = order[begin : begin + size]
            longest = len(ids[numbers[0]])
            padded = np.zeros((len(numbers), longest), np.int64)
            mask = np.zeros_like(padded)
            for row, number in enumerate(numbers):
                padded[row, : len(ids[number])], mask[row, : len(ids[number])] = ids[number], 1
            yield (
                numbers,
                {"input_ids": padded, "attention_mask": mask, "token_type_ids": np.zeros_like(padded)},
            )

    def measure(self, form: str, take: Take, end: Callable[[], None]) -> None:
        """Print a line for each batch size. `end`: waits for what `take` has begun."""
        for size in self._sizes if self._form in form else ():
            best = float("inf")
            for number in range(3):
                began = time.perf_counter()
                for batch in self._batches(size):
                    take(*batch)
                end()
                best = min(best, time.perf_counter() - began) if number else best
            cosines = (self._vectors * self._reference).sum(1)
            line = {
                "form": form,
                "batch": size,
                "texts_s": len(self._texts) / best,
                "cosine": float(cosines.min()),
            }
            print(json.dumps(line), flush=True)


def with_torch(bench: Bench, model: Path, folder: Path) -> None:
    """float32, bf16, and torch's own dynamic int8."""
    import torch
    import transformers

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    for form in ("float32", "bfloat16", "int8"):
        bert = transformers.BertModel.from_pretrained(model, add_pooling_layer=False).eval()
        if form == "bfloat16":
            bert = bert.bfloat16()
        if form == "int8":
            bert = torch.ao.quantization.quantize_dynamic(bert, {torch.nn.Linear}, torch.qint8)

        def take(numbers: list[int], given: dict[str, np.ndarray], bert: Any = bert) -> None:
            with torch.inference_mode():
                hidden = bert(
                    **{name: torch.from_numpy(one) for name, one in given.items()}
                ).last_hidden_state
            bench.keep(numbers, hidden.float().numpy(), given["attention_mask"])

        bench.measure(form, take, lambda: None)


def with_onnxruntime(bench: Bench, model: Path, folder: Path) -> None:
    """Both files in int8, with all cores to a batch."""
    import onnxruntime

    for form in ("model_int8", "plain_int8"):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        session = onnxruntime.InferenceSession(str(folder / f"{form}.onnx"), options)

        def take(numbers: list[int], given: dict[str, np.ndarray], session: Any = session) -> None:
            bench.keep(numbers, session.run(None, given)[0], given["attention_mask"])

        bench.measure(form, take, lambda: None)


def with_openvino(bench: Bench, model: Path, folder: Path) -> None:
    """Both files in int8, with all cores to a batch, and with a core to each of several batches at a time."""
    import openvino

    core, cores = openvino.Core(), len(os.sched_getaffinity(0))
    for form in ("static_int8", "weights_int8"):
        for hint, streams in (("LATENCY", 1), ("THROUGHPUT", cores)):
            settings = {"PERFORMANCE_HINT": hint, "NUM_STREAMS": streams, "INFERENCE_NUM_THREADS": cores}
            compiled = core.compile_model(str(folder / f"{form}.xml"), "CPU", settings)
            queue = openvino.AsyncInferQueue(compiled, 1 if streams == 1 else 2 * streams)
            queue.set_callback(
                lambda request, own: bench.keep(own[0], request.get_output_tensor().data, own[1])
            )

            def take(numbers: list[int], given: dict[str, np.ndarray], queue: Any = queue) -> None:
                queue.start_async(given, (numbers, given["attention_mask"]))

            bench.measure(f"{form} {hint.lower()}", take, queue.wait_all)


LIBRARIES = {"torch": with_torch, "onnxruntime": with_onnxruntime, "openvino": with_openvino}


if __name__ == "__main__":
    library, model, folder, texts, reference, batches, *form = sys.argv[1:]
    sizes = [int(size) for size in batches.split(",")]
    bench = Bench(Path(model), json.loads(Path(texts).read_text()), np.load(reference), sizes, *form)
    LIBRARIES[library](bench, Path(model), Path(folder))
