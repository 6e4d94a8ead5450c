"""Models in the folders that programs keep them in. Names and small files are read, never weights.

    Hugging Face   HF_HUB_CACHE, else HF_HOME/hub     models--ORG--NAME/{refs,snapshots/COMMIT}; safetensors and GGUF
    Cohort         --download-dir                     the same layout
    LM Studio      LM_STUDIO_MODELS, else ~/.lmstudio/models         ORG/NAME/*.gguf
                   and ~/.cache/lm-studio/models
    Ollama         OLLAMA_MODELS, else ~/.ollama/models              manifests/HOST/ORG/NAME/TAG name blobs by digest
                   and /usr/share/ollama/.ollama/models, that of its service
    llama.cpp      LLAMA_CACHE, else ~/.cache/llama.cpp              *.gguf

A quantization is taken from a GGUF file's name, where every converter writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executors.contract import ConfigError
from executors.weight_files import has_weights, index_of, weight_files
from server.model_files import ollama
from server.model_files.candidates import PART, candidates
from server.model_files.ollama import is_file, listed, stores
from server.model_files.small_json import read_object

MAX_DEPTH = 4
"""Folders below LM Studio's root that are searched."""
_DTYPES = ("torch_dtype", "dtype")


@dataclass(frozen=True, slots=True)
class Found:
    """A model on this disk. `size` in bytes. `problem`: why it cannot be used, None if nothing is known against it."""

    name: str
    """As `cohort serve` takes it."""
    format: str
    size: int
    path: Path
    source: str
    """The program whose folder it is."""
    problem: str | None = None
    package: str = ""
    """Digest of what is served with the file; two packages of one file are two models."""

    @property
    def is_gguf(self) -> bool:
        """True for a GGUF file."""
        return self.format.startswith("GGUF")


def roots(environ: Mapping[str, str], home: Path) -> dict[str, list[Path]]:
    """The folders of each program, in the order in which they are looked through."""
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    hub = environ.get("HF_HUB_CACHE") or Path(environ.get("HF_HOME") or cache / "huggingface") / "hub"
    own = environ.get("COHORT_DOWNLOAD_DIR")
    studio = environ.get("LM_STUDIO_MODELS")  # LM Studio itself keeps the place in a file of its own
    usual = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    return {
        "Hugging Face": [Path(hub)],
        "Cohort": [Path(own)] if own else [],
        "LM Studio": [Path(studio)] if studio else usual,
        "Ollama": stores(environ, home),
        "llama.cpp": [Path(environ.get("LLAMA_CACHE") or cache / "llama.cpp")],
    }


def find(folders: Mapping[str, Iterable[Path]]) -> Iterator[Found]:
    """All models below `folders` (see `roots`), each once. A folder that cannot be read is passed over."""
    look = {"Ollama": _ollama, "LM Studio": _lm_studio, "llama.cpp": _files}
    places: set[tuple[Path, str]] = set()
    for source, paths in folders.items():
        for root in paths:
            for model in sorted(look.get(source, _hub)(root, source), key=lambda one: one.name.lower()):
                real = model.path.resolve(), model.package
                if real not in places:
                    places.add(real)
                    yield model


def _hub(root: Path, source: str) -> Iterator[Found]:
    for folder in listed(root):
        kind, *parts = folder.name.split("--")
        if kind != "models" or not 1 <= len(parts) <= 2 or not all(parts):
            continue
        name, snapshot = "/".join(parts), _snapshot(folder)
        if snapshot is None:
            yield Found(name, "?", 0, folder, source, "nothing of it was fetched")
            continue
        files = _files_of(snapshot)
        weights = has_weights([path.name for path in files])
        if weights:
            yield _checkpoint(name, snapshot, files, source)
        yield from _gguf(files, source, lambda path, name=name: f"{name}/{path.name}")
        if not weights and not any(path.suffix == ".gguf" for path in files):
            yield Found(name, "?", 0, snapshot, source, "neither safetensors nor GGUF is here")


def _snapshot(folder: Path) -> Path | None:
    """The commit that `main` names, else the one that was changed last."""
    if (commit := _snapshot_of_main(folder)) is not None:
        return commit
    there = [path for path in listed(folder / "snapshots") if _is_folder(path)]
    return max(there, key=changed, default=None)


def _snapshot_of_main(folder: Path) -> Path | None:
    try:
        commit = folder / "snapshots" / (folder / "refs" / "main").read_text()[:64].strip()
        return commit if commit.is_dir() else None
    except (OSError, ValueError):
        return None


def is_of_main(path: Path) -> bool:
    """Whether a snapshot of the hub's layout, or a file in one, is what the branch `main` was when it was fetched: that is what a
    name without a revision means. False where a revision was fetched by its commit alone."""
    for folder in path.parents:
        if folder.name == "snapshots":
            commit = _snapshot_of_main(folder.parent)
            return commit is not None and path.is_relative_to(commit)
    return False


def _checkpoint(name: str, folder: Path, files: list[Path], source: str) -> Found:
    config = read_object(folder / "config.json")
    problem = None if config else "config.json is missing or no JSON object"
    by_name = {path.name: path for path in files}
    weights: list[Path] = []
    try:
        index = index_of(by_name)
        chosen = weight_files(by_name, index, None if index is None else read_object(folder / index))
        weights = [by_name[part] for part in chosen.files if part in by_name]
        if absent := len(chosen.files) - len(weights):
            problem = f"{absent} of {len(chosen.files)} weight files are missing"
    except ConfigError as error:
        problem = str(error)
    dtype = next((config[key] for key in _DTYPES if isinstance(config.get(key), str)), "")
    quantized = config.get("quantization_config")
    method = quantized.get("quant_method") if isinstance(quantized, dict) else None
    kind = " ".join(part for part in ("safetensors", dtype.removeprefix("torch."), str(method or "")) if part)
    return Found(name, kind, sum(map(_size, weights)), folder, source, problem)


def _lm_studio(root: Path, source: str, depth: int = MAX_DEPTH) -> Iterator[Found]:
    files = _files_of(root)
    if has_weights([path.name for path in files]):
        yield _checkpoint(str(root), root, files, source)
    yield from _gguf(files, source, str)
    for folder in listed(root) if depth else ():
        if _is_folder(folder) and not folder.is_symlink():
            yield from _lm_studio(folder, source, depth - 1)


def _files(root: Path, source: str) -> Iterator[Found]:
    return _gguf(_files_of(root), source, str)


def _gguf(files: Iterable[Path], source: str, name: Any) -> Iterator[Found]:
    """A row per model: the first of several parts stands for all of them; files for images are no models."""
    by_name = {path.name: path for path in files if path.suffix == ".gguf"}
    for one in candidates({name: _size(path) for name, path in by_name.items()}):
        path, problem = by_name[one.name], None
        if (part := PART.search(one.name)) is not None and len(one.files) != int(part[2]):
            problem = f"{int(part[2]) - len(one.files)} of {int(part[2])} parts are missing"
        kind = f"GGUF {one.quantization}" if one.quantization else "GGUF"
        yield Found(name(path), kind, one.size, path, source, problem)


def _ollama(root: Path, source: str) -> Iterator[Found]:
    for manifest, one in ollama.manifests(root):
        if one.path is None:
            yield Found(one.name, "?", 0, manifest, source, "its manifest names no model")
            continue
        problem, package = _package(one) if is_file(one.path) else ("its file is missing", "")
        kind = f"GGUF {one.kind}" if one.kind else "GGUF"
        yield Found(one.name, kind, _size(one.path), one.path, source, problem, package)


def _package(manifest: ollama.Manifest) -> tuple[str | None, str]:
    """Why a model of Ollama's store cannot be used, by what its manifest names beside the file, and the digest of that."""
    try:
        return None, manifest.package().digest
    except ConfigError as error:
        return str(error), manifest.name


def _files_of(folder: Path) -> list[Path]:
    return [path for path in listed(folder) if is_file(path)]


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def changed(path: Path) -> float:
    """Return when a file was changed, in seconds since the epoch; 0 for one that is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
