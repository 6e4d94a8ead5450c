"""Batched generation with the training model: enough to measure it without a server."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from executors.tiny.model import Cache, TinyConfig, TinyModel
from executors.tiny.tokenizer import token_id


@dataclass(frozen=True)
class Answer:
    """Text generated for one prompt, and whether the model ended it by itself."""

    text: str
    finished: bool


def load(folder: Path) -> tuple[TinyModel, Tokenizer]:
    """Return the exported model in `folder`, in fp32, and its tokenizer."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    fields = TinyConfig.__dataclass_fields__
    model = TinyModel(TinyConfig(**{name: config[name] for name in fields}))
    tensors = load_file(str(folder / "model.safetensors"))
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


@torch.inference_mode()
def answer_all(
    model: TinyModel, tokenizer: Tokenizer, prompts: Sequence[str], temperature: float = 0.2, seed: int = 0,
    max_tokens: int = 160, rows: int = 64,
) -> list[Answer]:  # fmt: skip
    """Return an answer to each of `prompts`, rendered text that ends where the assistant speaks."""
    generator = torch.Generator().manual_seed(seed)
    encoded = [tokenizer.encode(prompt).ids for prompt in prompts]
    order = sorted(range(len(prompts)), key=lambda index: len(encoded[index]))
    answers: dict[int, Answer] = {}
    for begin in range(0, len(order), rows):
        chosen = order[begin : begin + rows]
        outputs = _generate(
            model, [encoded[index] for index in chosen], generator, temperature, max_tokens, tokenizer
        )
        answers.update(zip(chosen, outputs, strict=True))
    return [answers[index] for index in range(len(prompts))]


def _generate(
    model: TinyModel, prompts: list[list[int]], generator: torch.Generator, temperature: float, max_tokens: int,
    tokenizer: Tokenizer,
) -> list[Answer]:  # fmt: skip
    """Generate for one batch. Rows are padded on the left, so that all of them end together:

    row 0   . . . a b c | d e      `real` marks the letters; a padded position is never looked at
    row 1   a b c d e f | g h
    """
    end = token_id(tokenizer, "<|im_end|>")
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    real = torch.tensor([[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts])
    positions = (real.cumsum(1) - 1).clamp(min=0)
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    # A padded row of the mask would be empty, which softmax cannot take, so every token may look at itself.
    mask = (causal & real[:, None, :]) | torch.eye(width, dtype=torch.bool)
    cache: Cache | None = None
    logits, cache = model.step(ids, positions, mask[:, None], cache)
    position = positions[:, -1:]
    outputs: list[list[int]] = [[] for _ in prompts]
    done = torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(max_tokens):
        tokens = _sample(logits, temperature, generator)
        for row in (~done).nonzero()[:, 0].tolist():
            outputs[row].append(int(tokens[row]))
        done |= tokens == end
        if bool(done.all()):
            break
        real = torch.cat((real, torch.ones(len(prompts), 1, dtype=torch.bool)), dim=1)
        position = position + 1
        logits, cache = model.step(tokens[:, None], position, real[:, None, None, :], cache)
    return [
        Answer(tokenizer.decode([token for token in output if token != end]), output[-1] == end)
        for output in outputs
    ]


def _sample(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Return one token per row of `logits`; temperature 0 takes the best."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    probabilities = torch.softmax(logits / temperature, dim=-1)
    return torch.multinomial(probabilities, 1, generator=generator)[:, 0]
