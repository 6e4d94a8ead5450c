"""transformers as the reference: templates, token ids, logits and greedy tokens of a checkpoint directory.

Nothing is downloaded, and no code of the checkpoint is run.
"""

from __future__ import annotations

import warnings
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
    """Tokens that were each the most likely one. `gaps`: by how much its logit exceeded the second, at every step."""

    tokens: list[int]
    gaps: list[float]


_WITH_POOLER = ("bert", "roberta", "xlm-roberta", "camembert")
"""Values of `model_type` of encoders that transformers gives a layer behind the first token, which no vector goes through."""


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
            template = read_json(path).get("chat_template") if path.is_file() else None
            self._tokenizer.chat_template = template if isinstance(template, str | dict) else None

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
        """Return ids, with the special tokens that the tokenizer adds around a text."""
        return list(self._tokenizer(text)["input_ids"])

    def encode_pair(self, first: str, second: str) -> dict[str, list[int]]:
        """Return `ids` and `types` of two texts, joined; types are 0 where the tokenizer gives none."""
        # In lists, as sentence-transformers gives them: alone, an empty second text would be taken for none.
        encoding = self._tokenizer([first], [second])
        ids = list(encoding["input_ids"][0])
        return {"ids": ids, "types": list(encoding.get("token_type_ids", [[0] * len(ids)])[0])}

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


class ReferenceModel:
    """The model in `dtype` on the CPU. Attention uses its plain form, because the fused ones ignore the softcap of scores.
    Experts do as well, because the grouped product does not support float64."""

    def __init__(self, directory: Path, dtype: torch.dtype, lora: Path | None = None) -> None:
        """`lora`: folder of an adapter that PEFT adds to the model. Raises ConfigError when either cannot be loaded."""
        transformers = _transformers()
        try:
            # By its name: the automatic choice does not know all that hold more than a decoder.
            architecture = read_config(directory).architecture
            kind = getattr(transformers, architecture, transformers.AutoModelForCausalLM)
            model, loaded = kind.from_pretrained(
                directory, dtype=dtype, attn_implementation="eager", experts_implementation="eager",
                local_files_only=True, output_loading_info=True,
            )  # fmt: skip
        except Exception as error:
            raise ConfigError(f"transformers cannot load the model: {_one_line(error)}") from error
        _refuse_random(loaded, directory)
        if lora is not None:
            model = _with_adapter(model, lora, dtype)
        self._model = model.eval()

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """float32 [len(ids), V]."""
        output = self._model(torch.tensor([list(ids)]), use_cache=False)
        # `float` gives float64 within `Float64`.
        return output.logits[0].float().numpy().astype(np.float32, copy=False)

    def exact_logits(self, ids: Sequence[int]) -> np.ndarray:
        """Compute the same as `logits` in float64 with the weights as they are in `dtype`, and round at the end.

        Temporarily takes 8 bytes per element of the largest weight.
        """
        with Float64():
            return self.logits(ids)

    @torch.inference_mode()
    def greedy(self, ids: Sequence[int], count: int) -> Greedy:
        """Return `count` tokens after `ids` without stopping at end tokens, at which `generate` would stop."""
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


def load_encoder_reference(directory: Path, architecture: str | None, dtype: torch.dtype) -> Any:
    """Return an encoder of transformers in `dtype`, for evaluation. `architecture`: that of a model with a head, None for the
    encoder alone. Raises ConfigError when it cannot be loaded."""
    transformers = _transformers()
    try:
        kind = transformers.AutoModel if architecture is None else getattr(transformers, architecture)
        # Classes of transformers without a pooler take no such option.
        kind_of = transformers.AutoConfig.from_pretrained(directory, local_files_only=True).model_type
        pools = architecture is None and kind_of in _WITH_POOLER
        options = {"add_pooling_layer": False} if pools else {}
        model, loaded = kind.from_pretrained(
            directory, dtype=dtype, attn_implementation="eager", local_files_only=True, output_loading_info=True, **options
        )  # fmt: skip
    except Exception as error:
        raise ConfigError(f"transformers cannot load the model: {_one_line(error)}") from error
    _refuse_random(loaded, directory)
    return model.eval()


def _refuse_random(loaded: Mapping[str, Any], directory: Path) -> None:
    """Raises ConfigError if transformers made random tensors in place of some that it did not find. `loaded`: what it tells."""
    if missing := sorted(loaded["missing_keys"]):
        raise ConfigError(
            f"{directory}: transformers does not find {len(missing)} tensors ({missing[0]}, ...) by its names and would make "
            "random ones, so there is nothing to compare with"
        )


def version() -> str:
    """Return the version of transformers. Raises ConfigError if it cannot be imported."""
    return str(_transformers().__version__)


def _transformers() -> Any:
    try:
        import transformers
    except Exception as error:
        raise ConfigError(f"transformers cannot be imported: {_one_line(error)}") from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def peft_version() -> str:
    """Return the version of PEFT. Raises ConfigError if it cannot be imported."""
    return str(_peft().__version__)


def _with_adapter(model: Any, lora: Path, dtype: torch.dtype) -> Any:
    peft = _peft()
    try:
        with warnings.catch_warnings():
            # PEFT asks transformers by names of older versions.
            warnings.simplefilter("ignore", FutureWarning)
            adapted = peft.PeftModel.from_pretrained(model, str(lora))
    except Exception as error:
        raise ConfigError(f"PEFT cannot load the adapter: {_one_line(error)}") from error
    # PEFT keeps an adapter's numbers in float32 whatever the model's dtype is; the executor does not.
    return adapted.to(dtype).get_base_model()


def _peft() -> Any:
    try:
        import peft
    except Exception as error:
        raise ConfigError(f"PEFT cannot be imported: {_one_line(error)}") from error
    return peft


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
