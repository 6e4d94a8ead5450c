"""Which files of a repository a server needs. Names only: no library, no network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from executors.contract import ConfigError
from executors.weight_files import INDEX, SINGLE, has_weights, index_of, is_second_copy
from executors.weight_files import weight_files as choose_weights
from server.model_files.candidates import Candidate, candidates, choose
from server.system.exit_codes import NotYet

CONFIG = "config.json"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTER_FILES = (ADAPTER_CONFIG, "chat_template.jinja", "tokenizer_config.json")
"""Of a LoRA adapter, beside its weights."""

_SMALL_SUFFIXES = (".json", ".jinja")
_TOKENIZERS = (
    "tokenizer.model",
    "tiktoken.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.txt",
    "merges.txt",
)
_TEMPLATES = "additional_chat_templates"
_MODULES = "modules.json"
_STEP = re.compile(rf"\d+_Dense/{re.escape(SINGLE)}")
_MISTRALS_CONFIG = "params.json"
_LEFT_OUT = frozenset({
    "vision_tower", "vision_model", "visual", "multi_modal_projector", "audio_tower", "mtp", "score", "classifier", "qa_outputs",
    "v_head", "inv_freq", "masked_bias", "position_ids",
})  # fmt: skip
"""Parts of names whose tensors no decoder needs: other parts of a model, heads of other tasks, buffers of old savers."""
_PICKLED = (".bin", ".pth", ".pt", ".ckpt")


class HubError(Exception):
    """A repository cannot be served. The message is one sentence that names it and says what to do."""


class HubNotYet(HubError, NotYet):
    """The hub cannot be reached, or cannot answer at the moment."""


def small_files(paths: Iterable[str]) -> list[str]:
    """Configuration, tokenizer and templates. Folders such as onnx/ and original/ hold the same model in other forms.

    Where modules.json lists the steps of a model of sentence-transformers, their configurations lie in folders of any name.
    """
    present = list(paths)
    steps = _MODULES in present
    return sorted(path for path in present if _is_small(PurePosixPath(path), steps))


def _is_small(path: PurePosixPath, steps: bool) -> bool:
    if len(path.parts) == 1:
        other_weights = path.name.endswith(tuple(f"{suffix}.index.json" for suffix in _PICKLED))
        return not other_weights and (path.suffix in _SMALL_SUFFIXES or path.name in _TOKENIZERS)
    if steps and len(path.parts) == 2 and path.name == CONFIG:
        return True
    return path.parent == PurePosixPath(_TEMPLATES) and path.suffix == ".jinja"


def takes_gguf(paths: Iterable[str]) -> bool:
    """Whether a repository has GGUF files, and no safetensors beside a configuration."""
    present = set(paths)
    top = [path for path in present if "/" not in path]
    return not (CONFIG in present and has_weights(top)) and any(path.endswith(".gguf") for path in present)


def index_name(name: str, paths: Iterable[str]) -> str | None:
    """The index of the weights, None if there is none. Raises HubError for `name` if there are several."""
    try:
        return index_of([path for path in paths if "/" not in path])
    except ConfigError as error:
        raise HubError(f"{name}: {error}") from None


def weight_files(name: str, paths: Iterable[str], index: Mapping[str, Any] | None) -> list[str]:
    """The safetensors files that the loader will open, see executors/weight_files.py.

    Other safetensors files (a second copy under another name, another precision) are left where they are. `index` is
    the content of the index. The layers behind the pooling of a model of sentence-transformers have files of their own. Raises
    HubError for `name` when there are none.
    """
    present = {path for path in paths if "/" not in path}
    index_file = index_name(name, present)
    try:
        chosen = choose_weights(present, index_file, index)
    except ConfigError as error:
        raise HubError(
            f"{name}: {error}: the repository is broken; take another revision or repository"
        ) from None
    if chosen.files and _MISTRALS_CONFIG in present and all(map(is_second_copy, chosen.files)):
        raise HubError(
            f"{name} has weights in Mistral's own layout only ({_MISTRALS_CONFIG}); take a repository in Hugging Face's layout"
        )
    missing = [shard for shard in chosen.files if shard not in present and _is_needed(shard, chosen.index)]
    if missing:
        raise HubError(
            f"{name}: {missing[0]} is missing, though its {chosen.index_name} names it: the upload is not complete; "
            "take another revision with --revision"
        )
    if chosen.files:
        return [*(shard for shard in chosen.files if shard in present), *_of_steps(paths)]
    raise HubError(
        f"{name} has {_other_weights(set(paths))}; needed: {SINGLE} or {INDEX}; take another repository"
    )


def _of_steps(paths: Iterable[str]) -> list[str]:
    """The weights of steps that modules.json lists, in folders as sentence-transformers names them: 2_Dense."""
    present = set(paths)
    if _MODULES not in present:
        return []
    return sorted(path for path in present if _STEP.fullmatch(path))


def gguf_files(name: str, sizes: Mapping[str, int], selector: str | None) -> list[str]:
    """The files of one GGUF model among a repository's (path -> bytes), in the order of its parts. `selector`: the path of the
    first or only one, or a quantization; None: Q4_K_M if there are several.

    Raises HubError for `name` when there is none, or several to choose from.
    """
    models = candidates(sizes)
    if selector is not None and selector.endswith(".gguf"):
        by_path = [one for one in models if one.name == selector]
        if not by_path and selector in sizes:
            raise HubError(
                f"{name}: {selector} is part of another file, or a model for images: name another file"
            )
        models, selector = (by_path, None) if by_path else (models, selector)
    if not models:
        raise HubError(f"{name} has no GGUF file: take another repository")

    def spelled(one: Candidate) -> str:
        same = [other for other in models if other.quantization == one.quantization]
        alone = one.quantization is not None and len(same) == 1
        return f"{name}:{one.quantization}" if alone else f"{name}/{one.name}"

    try:
        return list(choose(name, models, selector, spelled).files)
    except ConfigError as error:
        raise HubError(str(error)) from None


def _is_needed(shard: str, of: Mapping[str, Any]) -> bool:
    """Whether a shard of an index (tensor -> shard) holds more than what the loader leaves out anyway."""
    names = [name for name, where in of.items() if where == shard]
    return not all(_LEFT_OUT & set(str(name).split(".")) for name in names)


def _other_weights(present: set[str]) -> str:
    for kind, suffixes in (("pickled", _PICKLED), ("GGUF", (".gguf",)), ("ONNX", (".onnx",))):
        if weights := sorted(path for path in present if path.endswith(suffixes)):
            return f"only {kind} weights ({weights[0]})"
    return "no weights"
