"""What `benchmarks.quality` compares: logits of transformers and of our executor for the same sequences, teacher-forced.

They are asked in three ways, for products with many rows, a few and one are not the same code:

    prefill   the whole sequence in one forward
    decode    the prompt in one forward, then a token at a time over cached KV, all sequences in one batch
    alone     the same, one sequence after the other; transformers decode no other way, so there `decode` is this too
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer

from benchmarks.quality_texts import TEXTS
from benchmarks.shapes import SHAPES
from executors.contract import DecodeInput, KvCacheHandle, LogitsMode, ModelExecutor, PrefillInput, Tensor
from executors.contract.config import (
    ExecutorAttentionConfig,
    ExecutorConfig,
    ExecutorMemoryConfig,
    OptimizationConfig,
)
from executors.llm.factory import LlmFactory
from executors.tiny import weights_dir

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

Way = Literal["prefill", "decode", "alone"]
WAYS: tuple[Way, ...] = ("prefill", "decode", "alone")

RANDOM_SHAPES: dict[str, dict[str, Any]] = SHAPES | {
    "mini": SHAPES["qwen3-0.6b"] | {"num_hidden_layers": 4, "vocab_size": 4096, "eos_token_id": None},
}
"""By name; "mini" has the widths of the 0.6B model in a seventh of its layers."""

TINY_PROMPTS = Path(__file__).with_name("quality_prompts.json")
"""40 chats to cohort-tiny, a JSON list of strings: rendered by its template up to where the assistant answers."""
_CHATS_PER_SEED = 8
"""Distance in that list between the first chats of two consecutive seeds."""

_PROMPT_LENGTHS = (7, 16, 24, 33, 48, 64, 97, 128)
"""Of random prompts, in turn: full blocks and parts of them."""


@dataclass(frozen=True, slots=True)
class Forced:
    """A sequence that is fed as it is, whatever the model would have said.

    `rows`: ascending int64 positions whose logits are compared. Those at row r are for the token ids[r + 1], so the
    sequence is read up to ids[rows[-1]].
    """

    ids: list[int]
    rows: np.ndarray

    @property
    def targets(self) -> np.ndarray:
        """int64 [rows]: the tokens that follow the rows."""
        return np.asarray(self.ids, np.int64)[self.rows + 1]

    @property
    def read(self) -> list[int]:
        """The ids up to the last row."""
        return self.ids[: int(self.rows[-1]) + 1]

    @property
    def prompt_length(self) -> int:
        """Tokens up to the first row: what decoding has to begin with."""
        return int(self.rows[0]) + 1


class Transformers:
    """The checkpoint as transformers computes it on the CPU, in `dtype`."""

    def __init__(self, directory: Path, dtype: torch.dtype, attention: str = "sdpa") -> None:
        """`attention`: "sdpa", which is the default of transformers and the more exact in bf16, or "eager"."""
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, attn_implementation=attention, local_files_only=True
        )
        self._model = model.eval()

    @torch.inference_mode()
    def continued(self, prompt: Sequence[int], count: int) -> Forced:
        """The prompt with `count` greedy tokens, whatever ends the model knows; the rows are those that chose them."""
        ids, fed, past = list(prompt), list(prompt), None
        for _ in range(count):
            output = self._model(torch.tensor([fed]), past_key_values=past, use_cache=True, logits_to_keep=1)
            fed, past = [int(output.logits[0, -1].argmax())], output.past_key_values
            ids += fed
        return Forced(ids, np.arange(len(prompt) - 1, len(ids) - 1))

    @torch.inference_mode()
    def logits(self, sequence: Forced, way: Way = "prefill") -> np.ndarray:
        """float32 [rows, V]."""
        if way == "prefill":
            output = self._model(torch.tensor([sequence.read]), use_cache=False)
            return output.logits[0, torch.from_numpy(sequence.rows)].float().numpy()
        ids, begin, past = sequence.read, 0, None
        found = []
        for end in range(sequence.prompt_length, len(ids) + 1):
            part = torch.tensor([ids[begin:end]])
            output = self._model(part, past_key_values=past, use_cache=True, logits_to_keep=1)
            found.append(output.logits[0, -1].float().numpy())
            begin, past = end, output.past_key_values
        return np.stack(found)[sequence.rows - sequence.rows[0]]


# -- ours ----------------------------------------------------------------------------------------------------------------


def configuration(
    directory: Path, sequences: Sequence[Forced], threads: int | None = None, *, backend: str = "auto",
    kv_cache_dtype: str = "auto", **optimization: Any,
) -> ExecutorConfig:  # fmt: skip
    """A bf16 executor on the CPU with KV for all of `sequences` at once. `backend`: of attention. `optimization`: see
    OptimizationConfig."""
    return ExecutorConfig(
        "llm", str(directory), dtype="bfloat16", device="cpu", max_num_seqs=len(sequences),
        max_model_len=max(len(one.ids) for one in sequences),
        attention=ExecutorAttentionConfig(backend=backend), memory=ExecutorMemoryConfig(kv_cache_dtype=kv_cache_dtype),
        optimization=OptimizationConfig(num_threads=threads, **optimization),
    )  # fmt: skip


@asynccontextmanager
async def started(config: ExecutorConfig) -> AsyncIterator[ModelExecutor]:
    """A warmed executor, shut down at the end. Raises ConfigError for what is not supported."""
    executor = LlmFactory().create_executor(config)
    await executor.warmup()
    await executor.begin_epoch(1)
    try:
        yield executor
    finally:
        await executor.shutdown()


async def our_logits(executor: ModelExecutor, sequences: Sequence[Forced], way: Way) -> list[np.ndarray]:
    """float32 [rows, V] of each sequence."""
    handles = _handles(executor, sequences, WAYS.index(way))
    if way == "prefill":
        found = [
            await _prefilled(executor, one.read, handle)
            for one, handle in zip(sequences, handles, strict=True)
        ]
        return [logits[one.rows] for logits, one in zip(found, sequences, strict=True)]
    if way == "decode":
        decoded = await _decoded(executor, sequences, handles)
    else:
        decoded = []
        for one, handle in zip(sequences, handles, strict=True):
            decoded += await _decoded(executor, [one], [handle])
    return [logits[one.rows - one.rows[0]] for logits, one in zip(decoded, sequences, strict=True)]


def _handles(executor: ModelExecutor, sequences: Sequence[Forced], seed: int) -> list[KvCacheHandle]:
    """Block tables in an order of their own for each seed: KV that an earlier call left behind is never the right one."""
    layout = executor.kv_layout()
    rng = np.random.default_rng(seed)
    free = [rng.permutation(group.num_blocks).astype(np.int32) for group in layout.groups]
    handles = []
    for number, sequence in enumerate(sequences):
        count = -(-len(sequence.ids) // layout.block_size)
        handles.append(KvCacheHandle(number, tuple(blocks[:count] for blocks in free)))
        free = [blocks[count:] for blocks in free]
    return handles


async def _prefilled(executor: ModelExecutor, ids: list[int], handle: KvCacheHandle) -> np.ndarray:
    """float32 [len(ids), V]; writes the KV of `handle`."""
    request = PrefillInput(Tensor.of([ids], "int32"), kv_cache=handle, logits=LogitsMode.ALL)
    output = await executor.prefill(request)
    assert output.logits is not None  # asked for
    return output.logits.numpy()[0]


async def _decoded(
    executor: ModelExecutor, sequences: Sequence[Forced], handles: Sequence[KvCacheHandle]
) -> list[np.ndarray]:
    """float32 [tokens from the first row on, V] of each: the prompt's last row, then one row a step."""
    rows = []
    for one, handle in zip(sequences, handles, strict=True):
        rows.append([(await _prefilled(executor, one.ids[: one.prompt_length], handle))[-1]])
    position = [one.prompt_length for one in sequences]
    while live := [i for i, one in enumerate(sequences) if position[i] < len(one.read)]:
        inputs = []
        for i in live:
            token = Tensor.of([[sequences[i].ids[position[i]]]], "int32")
            handle = KvCacheHandle(handles[i].cache_id, handles[i].block_tables, position[i])
            inputs.append(DecodeInput(token, handle, position[i]))
        for i, output in zip(live, await executor.batch_decode(inputs), strict=True):
            rows[i].append(output.last_token_logits())
            position[i] += 1
    return [np.stack(one) for one in rows]


# -- models and text -----------------------------------------------------------------------------------------------------


def random_checkpoint(fields: dict[str, Any], folder: Path, seed: int) -> Path:
    """Write config.json of `fields` and random bf16 weights; the same for the same seed. Returns the folder.

    Deviations of 1.2 / sqrt(columns) keep the residual stream and the logits at the size of a trained model's: with
    smaller ones every token would just be repeated.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, parameter in model.named_parameters():  # a tied head is named once, as the embedding
        values = torch.empty(parameter.shape)
        if values.dim() > 1:
            values.normal_(0.0, 1.2 * values.shape[-1] ** -0.5, generator=generator)
        else:
            values.uniform_(0.5, 1.5, generator=generator)
        tensors[name] = values.bfloat16()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def prompts(directory: Path, count: int, seed: int) -> list[list[int]]:
    """`count` token-id prompts: for cohort-tiny the rendered chats of `TINY_PROMPTS`, for another trained model pieces of
    `TEXTS`, for a checkpoint without a tokenizer random ids."""
    lengths = [_PROMPT_LENGTHS[i % len(_PROMPT_LENGTHS)] for i in range(count)]
    if not (directory / "tokenizer.json").is_file():
        vocabulary = json.loads((directory / "config.json").read_text())["vocab_size"]
        rng = np.random.default_rng(seed)
        return [rng.integers(0, vocabulary, length).tolist() for length in lengths]
    if directory != weights_dir():
        texts = [one.ids for one in forced_texts(directory)]
        # Each seed gives the texts other lengths, and other beginnings.
        return [texts[(seed + i) % len(texts)][8 * seed :][:length] for i, length in enumerate(lengths)]
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    chats = json.loads(TINY_PROMPTS.read_text("utf-8"))
    first = seed * _CHATS_PER_SEED
    return [tokenizer.encode(chats[(first + i) % len(chats)]).ids for i in range(count)]


def forced_texts(directory: Path, last: int | None = None) -> list[Forced]:
    """`TEXTS` in the checkpoint's tokens; the rows are those of all tokens after the first, or of the `last` ones."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    found = []
    for text in TEXTS.values():
        ids = tokenizer.encode(text).ids
        found.append(Forced(ids, np.arange(0 if last is None else len(ids) - 1 - last, len(ids) - 1)))
    return found
