"""The files of a checkpoint and its index, which says what file holds each tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from executors.contract.errors import ConfigError
from executors.llm.checkpoint.fused_tensors import divide_fused
from executors.llm.checkpoint.gguf_tensors import GgufTensors
from executors.llm.checkpoint.quantized_search import quantized_tensors
from executors.llm.checkpoint.quantized_tensors import QuantizedTensors
from executors.llm.checkpoint.safetensors_file import SafetensorsFile
from executors.llm.checkpoint.tensor_file import TensorFile
from executors.llm.model.config import config_of_gguf, read_json
from executors.llm.model.gguf_config import gguf_config
from executors.llm.model.gguf_source import config_path, is_gguf, read_source
from executors.llm.model.gguf_stored import own_name, stored_tensors
from executors.llm.model.quantization import IntSchemes, quantization_of
from executors.weight_files import INDEX, SINGLE, WeightFiles, index_of, is_second_copy, weight_files

__all__ = ["INDEX", "SINGLE", "Checkpoint", "chosen_weights", "index_path"]

_MISTRALS_EMBEDDING = "tok_embeddings.weight"


class Checkpoint:
    """The tensors of a checkpoint directory by name, over all its files. Raises ConfigError.

    Those of a GGUF file have the usual names of its family, and each has to be used (`exact`): llama.cpp computes with every one.
    Weights that are quantized to whole numbers have their usual names and shapes, and the tensors that they are made of have
    none. `source` is the file that says what tensors there should be.

    An index may name files and tensors that do not exist. This class does not know whether the model needs them.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.source = config_path(directory)
        self.exact = is_gguf(directory)
        self._name_for_messages: Callable[[str], str] = str
        self.files: dict[str, TensorFile] = {}
        self.absent: dict[str, str] = {}
        """Error text of each tensor that the index names and that does not exist."""
        self._of: dict[str, TensorFile] = {}
        if self.exact:
            self._open_gguf(directory)
            return
        chosen = chosen_weights(directory)
        opened = {
            shard: SafetensorsFile(directory / shard)
            for shard in chosen.files
            if not chosen.index or (directory / shard).is_file()
        }
        if not chosen.index:
            _refuse_second_copies(opened)
        index = divide_fused(directory, opened.values(), chosen.index)
        for shard, file in opened.items():
            self.files[shard] = file
            self._of.update(dict.fromkeys(file.names(), file))
        for name, shard in index.items():
            if shard not in self.files:
                why = f"{directory / shard}: no such file, though {chosen.index_name} names it"
            elif name not in self.files[shard]:
                why = f"{directory / shard}: tensor {name} is missing, though {chosen.index_name} lists it"
            else:
                self._of[name] = self.files[shard]  # of two copies the one that the index names
                continue
            if name not in self._of:
                self.absent[name] = why
        schemes = _int_schemes(directory)
        if schemes is not None:
            self._find_quantized(schemes)

    def _find_quantized(self, schemes: IntSchemes) -> None:
        """Put weights in the place of the tensors that they are made of."""
        plain = {name: file for name, file in self.files.items() if isinstance(file, SafetensorsFile)}
        listed = dict(self._of)

        def file_of(name: str) -> SafetensorsFile | None:
            if name in self.absent:
                raise ConfigError(self.absent[name])
            file = listed.get(name)
            return file if isinstance(file, SafetensorsFile) else None

        files, parts = quantized_tensors(schemes, plain, file_of)
        for name in parts:
            del self._of[name]
        for file in files:
            self.files[f"{file.path.name} in whole numbers"] = file
            self._of.update(dict.fromkeys(file.names(), file))

    def _open_gguf(self, directory: Path) -> None:
        gguf = read_source(directory)
        derived = gguf_config(gguf)
        self.source = gguf.path
        config = config_of_gguf(gguf, derived)
        self._name_for_messages = partial(own_name, config=config, row=derived.row)
        stored = stored_tensors(gguf, config, derived.row)
        for path in gguf.parts:
            here = {name: one for name, one in stored.items() if one.tensor.path == path}
            self.files[path.name] = GgufTensors(path, here)
            self._of.update(dict.fromkeys(here, self.files[path.name]))

    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._of)

    def listed(self) -> set[str]:
        """Names of all tensors, including those that only the index lists."""
        return self.names() | set(self.absent)

    def own_name(self, name: str) -> str:
        """Return a tensor's name as the files have it, for messages."""
        return self._name_for_messages(name)

    def file_of(self, name: str) -> TensorFile:
        """Return the file that holds a tensor."""
        return self._of[name]

    def has_no_effect(self, name: str) -> bool:
        """Whether a tensor is a bias of zeros beside a quantized weight, which some savers write for layers that have none."""
        stem, _, part = name.rpartition(".")
        file, beside = self._of.get(name), self._of.get(f"{stem}.weight")
        if (
            part != "bias"
            or not isinstance(file, SafetensorsFile)
            or not isinstance(beside, QuantizedTensors)
        ):
            return False
        return file.float_dtype(name) is not None and not bool(file.view(name).any())

    def close(self) -> None:
        """Unmap everything."""
        for file in self.files.values():
            file.close()


def _int_schemes(directory: Path) -> IntSchemes | None:
    """Return how the directory says that weights are quantized, None if they are not, or not to whole numbers."""
    path = directory / "config.json"
    if not path.is_file():
        return None
    claim = quantization_of(directory, read_json(path), str(path))
    return None if claim is None else claim.integers


def index_path(directory: Path) -> Path | None:
    """Return the index of a directory's weights, None if there is none. Raises ConfigError."""
    name = index_of(_names(directory))
    return None if name is None else directory / name


def _names(directory: Path) -> set[str]:
    try:
        return {path.name for path in directory.iterdir() if path.is_file()}
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be read ({error.strerror})") from None


def chosen_weights(directory: Path) -> WeightFiles:
    """Choose the files of a directory. Raises ConfigError if there are none that can be loaded."""
    names = _names(directory)
    try:
        index = index_of(names)
        chosen = weight_files(names, index, None if index is None else read_json(directory / index))
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(str(directory)) else f"{directory / text}") from None
    if chosen.files:
        return chosen
    if any(name.endswith((".bin", ".pt", ".pth")) for name in names):
        raise ConfigError(
            f"{directory} contains only pickled weights; supported: safetensors ({SINGLE} or {INDEX})"
        )
    raise ConfigError(f"{directory}: no weights; supported: safetensors ({SINGLE} or {INDEX})")


def _refuse_second_copies(files: Mapping[str, SafetensorsFile]) -> None:
    """Raise ConfigError if a tensor is in two files and no index says which one counts."""
    of: dict[str, str] = {}
    for name, file in files.items():
        for tensor in file.names():
            if tensor in of:
                raise ConfigError(
                    f"{file.path}: tensor {tensor} is in {of[tensor]}, too, and no index says which one counts; keep one of the "
                    "files here"
                )
            of[tensor] = name
    if files and all(map(is_second_copy, files)) and _MISTRALS_EMBEDDING in of:
        raise ConfigError(
            f"{next(iter(files.values())).path}: its tensors ({_MISTRALS_EMBEDDING}, ...) have the names of Mistral's own layout "
            f"(params.json); take the checkpoint in Hugging Face's layout ({SINGLE} or {INDEX})"
        )
