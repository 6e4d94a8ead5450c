"""transformers as the reference: templates, token ids, logits and greedy tokens of a checkpoint directory.

Nothing is fetched and no code of the checkpoint is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from executors.contract.errors import ConfigError
from executors.llm.model.config import read_config, read_json
from executors.llm.tools.widened import Float64


@dataclass(frozen=True, slots=True)
class Greedy:
    """Tokens that were each the most likely one. `gaps`: by how much its logit led the second's, at every step."""

    tokens: list[int]
    gaps: list[float]


class ReferenceText:
    """Tokenizer and chat template. Raises ConfigError when transformers cannot load the tokenizer."""

    def __init__(self, directory: Path) -> None:
        transformers = _transformers()
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
        except Exception as error:
            raise ConfigError(f"transformers cannot load the tokenizer: {_one_line(error)}") from error
        if not self._tokenizer.chat_template:
            # Where older checkpoints that read images keep it: transformers looks there for processors only.
            path = directory / "chat_template.json"
            found = read_json(path).get("chat_template") if path.is_file() else None
            self._tokenizer.chat_template = found if isinstance(found, str) else None

    def render(self, conversation: Mapping[str, Any]) -> dict[str, str]:
        """{"text": ...} of messages, tools and generation_prompt, or {"refused": REASON}."""
        try:
            text = self._tokenizer.apply_chat_template(
                conversation["messages"], tools=conversation["tools"] or None, tokenize=False,
                add_generation_prompt=conversation["generation_prompt"],
            )  # fmt: skip
        except Exception as error:  # whatever a template raises
            return {"refused": _one_line(error)}
        return {"text": text}

    def encode(self, text: str) -> list[int]:
        """Ids, with the special tokens that the tokenizer puts around a text."""
        return list(self._tokenizer(text)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


class ReferenceModel:
    """The model in `dtype` on the CPU. Attention is in its plain form, for the fused ones leave out the bound of scores, and so
    are experts, for the grouped product has no float64."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        transformers = _transformers()
        try:
            # By its name: the automatic choice does not know all that hold more than a decoder.
            named = read_config(directory).architecture
            kind = getattr(transformers, named, transformers.AutoModelForCausalLM)
            model = kind.from_pretrained(
                directory, dtype=dtype, attn_implementation="eager", experts_implementation="eager",
                local_files_only=True,
            )  # fmt: skip
        except Exception as error:
            raise ConfigError(f"transformers cannot load the model: {_one_line(error)}") from error
        self._model = model.eval()

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """float32 [len(ids), V]."""
        output = self._model(torch.tensor([list(ids)]), use_cache=False)
        # `float` gives float64 within `Float64`.
        return output.logits[0].float().numpy().astype(np.float32, copy=False)

    def exact_logits(self, ids: Sequence[int]) -> np.ndarray:
        """As `logits`, computed in float64 with the weights as they are in `dtype`, and rounded at the end.

        Takes 8 bytes per element of the largest weight for a while.
        """
        with Float64():
            return self.logits(ids)

    @torch.inference_mode()
    def greedy(self, ids: Sequence[int], count: int) -> Greedy:
        """`count` tokens after `ids`, whatever ends the model knows: `generate` would stop at those."""
        tokens: list[int] = []
        gaps: list[float] = []
        output = self._model(torch.tensor([list(ids)]), use_cache=True)
        while True:
            best = output.logits[0, -1].float().topk(2)
            tokens.append(int(best.indices[0]))
            gaps.append(float(best.values[0] - best.values[1]))
            if len(tokens) == count:
                return Greedy(tokens, gaps)
            past = output.past_key_values
            output = self._model(torch.tensor([tokens[-1:]]), past_key_values=past, use_cache=True)


def version() -> str:
    """Of transformers. Raises ConfigError when it cannot be imported."""
    return str(_transformers().__version__)


def _transformers() -> Any:
    try:
        import transformers
    except Exception as error:
        raise ConfigError(f"transformers cannot be imported: {_one_line(error)}") from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
