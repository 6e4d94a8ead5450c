"""Computation for `cohort verify` on an encoder: vectors and logits of labels beside transformers, of texts and of pairs.

All texts run in one step, as a server would compute them. Numbers are judged as in compare.py: by their distance from float64.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from executors.contract.config import ExecutorConfig, OptimizationConfig
from executors.contract.errors import ConfigError
from executors.llm.encoder.config import EncoderConfig
from executors.llm.encoder.heads import ACTIVATIONS
from executors.llm.encoder.modules import DenseConfig
from executors.llm.encoder.reading import read_encoder
from executors.llm.factory import LlmFactory
from executors.llm.model.gguf_source import is_gguf, model_path
from executors.llm.tools.reference import ReferenceText, load_encoder_reference, version
from executors.llm.tools.widened import Float64
from executors.testing.driver import Driver, Feed

_RANDOM_PROMPTS = (1, 12, 40)
"""Lengths in tokens of the texts for a model without tokenizer."""
_FLOOR = 5e-6
"""See compare.py."""
_POOLINGS = ("cls", "mean", "last")

Stage = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Text:
    """Token ids of a text or of a pair, whose second text begins at `segment`."""

    ids: list[int]
    segment: int | None


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Of one text: `vectors` float32 [poolings, hidden], `labels` float32 [labels], empty without a head."""

    vectors: np.ndarray
    labels: np.ndarray

    def all(self) -> np.ndarray:
        """All numbers, one after the other."""
        return np.concatenate([self.vectors.reshape(-1), self.labels])


def run(job: dict[str, Any], stage: Stage) -> dict[str, Any]:
    """`job` as that of compare.py, and `pairs`: `texts`, `ids` and `types` of each (None: no tokenizer).
    Raises ConfigError when either side cannot load the checkpoint."""
    if job.get("lora") is not None:
        raise ConfigError(f"{job['lora']}: an encoder has no adapters")
    directory = Path(job["reference"])
    if is_gguf(directory):
        raise ConfigError(
            f"{model_path(directory)}: transformers reads no GGUF file of an encoder; name the checkpoint that it was made from "
            "as the reference"
        )
    shape = read_encoder(Path(job["model"]))
    stage("transformers")
    answer: dict[str, Any] = {"encoder": True, "transformers": version(), "torch": torch.__version__}
    texts = _texts(job, shape)
    if job["has_tokenizer"]:
        text = ReferenceText(directory)
        answer["ids"] = [text.encode(one) for one in job["texts"]]
        answer["pairs"] = [text.encode_pair(*one["texts"]) for one in job["pairs"] or ()]
    stage("reference model")
    exact, own = _reference(directory, job["dtype"], texts, stage)
    stage("executor")
    ours = asyncio.run(_executor_answers(job, texts))
    largest = max(float(np.abs(one.all()).max()) for one in exact)
    limit = job["tolerance"]
    answer["tolerance"] = max(2 * own, _FLOOR * largest) if limit is None else limit
    answer |= {"own_rounding": own if limit is None else None, "largest": largest}
    answer["num_labels"] = len(shape.labels)
    answer["prompts"] = [
        _judged(text, right, numbers, answer["tolerance"])
        for text, right, numbers in zip(texts, exact, ours, strict=True)
    ]
    return answer


def _texts(job: dict[str, Any], shape: EncoderConfig) -> list[_Text]:
    room = shape.longest
    if job["prompts"] is not None:
        texts = [_Text(ids[:room], None) for ids in job["prompts"] if ids]
        for one in job["pairs"] or ():
            typed = shape.num_types > 1 and 1 in one["types"]
            if len(one["ids"]) <= room:
                texts.append(_Text(one["ids"], one["types"].index(1) if typed else None))
        if max(max(one.ids) for one in texts) >= shape.vocab_size:
            raise ConfigError(
                f"the tokenizer produces ids beyond the model's vocabulary of {shape.vocab_size} tokens"
            )
        return texts
    rng = np.random.default_rng(1)
    lengths = [min(length, room) for length in _RANDOM_PROMPTS]
    texts = [_Text(rng.integers(0, shape.vocab_size, length).tolist(), None) for length in lengths]
    if shape.num_types > 1:
        texts += [_Text(one.ids, len(one.ids) // 2) for one in texts if len(one.ids) > 1]
    return texts


def _reference(
    directory: Path, dtype: str, texts: Sequence[_Text], stage: Stage
) -> tuple[list[_Numbers], float]:
    """Numbers in float64, and how far transformers is from them in `dtype`."""
    model = _Reference(directory, torch.float32)
    stage("reference numbers in float64")
    exact = [model.numbers(one, wide=True) for one in texts]
    stage(f"reference numbers in {dtype}")
    if dtype != "float32":
        model = _Reference(directory, getattr(torch, dtype))
    numbers = [model.numbers(one) for one in texts]
    return exact, max(_distance(a, b) or 0.0 for a, b in zip(numbers, exact, strict=True))


class _Reference:
    """The model of transformers, with the layers behind the pooling in float32."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        shape = read_encoder(directory)
        self._has_head, self._typed = bool(shape.labels), shape.num_types > 0
        self._model = load_encoder_reference(directory, shape.architecture if shape.labels else None, dtype)
        self._layers = [(_weights(one), one.activation) for one in shape.dense]

    @torch.inference_mode()
    def numbers(self, text: _Text, wide: bool = False) -> _Numbers:
        """All numbers of a text. `wide`: in float64 with the weights as they are."""
        types = torch.zeros(1, len(text.ids), dtype=torch.int64)
        if text.segment is not None:
            types[:, text.segment :] = 1
        with Float64() if wide else nullcontext():
            options = {"token_type_ids": types} if self._typed else {}
            output = self._model(torch.tensor([text.ids]), output_hidden_states=self._has_head, **options)
            hidden = (output.hidden_states[-1] if self._has_head else output.last_hidden_state)[0].float()
            vectors = torch.stack([hidden[0], hidden.mean(0), hidden[-1]])
            for weights, activation in self._layers:
                vectors = ACTIVATIONS[activation](
                    F.linear(vectors, weights["linear.weight"], weights.get("linear.bias"))
                )
            labels = output.logits[0].float() if self._has_head else torch.empty(0)
        return _Numbers(vectors.numpy().astype(np.float32), labels.numpy().astype(np.float32))


def _weights(layer: DenseConfig) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {name: one.float() for name, one in load_file(layer.weights).items()}


async def _executor_answers(job: dict[str, Any], texts: Sequence[_Text]) -> list[_Numbers]:
    """The numbers of all texts, from one step."""
    labels = tuple(range(len(read_encoder(Path(job["model"])).labels)))
    questions: list[tuple[str, tuple[int, ...]]] = [(pooling, ()) for pooling in _POOLINGS]
    if labels:
        questions.append(("logits", labels))
    config = ExecutorConfig(
        "llm", job["model"], dtype=job["dtype"], device=job["device"], max_num_seqs=len(texts) * len(questions),
        max_num_batched_tokens=len(questions) * sum(len(one.ids) for one in texts),
        max_model_len=max(len(one.ids) for one in texts),
        optimization=OptimizationConfig(num_threads=job["num_threads"]),
    )  # fmt: skip
    executor = LlmFactory().create_executor(config)
    driver = await Driver.start(executor)
    try:
        outputs = await driver.step(
            *(
                Feed(driver.add(text.ids, None, pooling=pooling, label_ids=ids, second_segment=text.segment))
                for text in texts
                for pooling, ids in questions
            )
        )
    finally:
        await executor.shutdown()
    numbers = []
    for begin in range(0, len(outputs), len(questions)):
        rows = [out.pooled for out in outputs[begin : begin + len(questions)] if out is not None]
        vectors = [row for row in rows[: len(_POOLINGS)] if row is not None]
        own = rows[len(_POOLINGS)] if labels else None
        numbers.append(_Numbers(np.stack(vectors), np.empty(0, np.float32) if own is None else own))
    return numbers


def _judged(text: _Text, exact: _Numbers, numbers: _Numbers, tolerance: float) -> dict[str, Any]:
    """One text's report. A difference of None: not a number, or a different shape."""
    vectors, labels = _far(numbers.vectors, exact.vectors), _far(numbers.labels, exact.labels)
    return {
        "length": len(text.ids), "pair": text.segment is not None, "vectors": vectors, "labels": labels,
        "largest": float(np.abs(exact.all()).max()),
        "vectors_equal": vectors is not None and vectors <= tolerance,
        "labels_equal": labels is not None and labels <= tolerance,
    }  # fmt: skip


def _distance(a: _Numbers, b: _Numbers) -> float | None:
    return _far(a.all(), b.all())


def _far(a: np.ndarray, b: np.ndarray) -> float | None:
    if a.shape != b.shape:
        return None
    largest = float(np.abs(a - b).max(initial=0.0))
    return largest if np.isfinite(largest) else None
