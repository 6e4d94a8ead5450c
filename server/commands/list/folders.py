"""Models in the folders that programs keep them in. Names and small files are read, never weights.

    Hugging Face   HF_HUB_CACHE, else HF_HOME/hub     models--ORG--NAME/{refs,snapshots/COMMIT}; safetensors and GGUF
    Cohort         --download-dir                     the same layout
    LM Studio      ~/.lmstudio/models, ~/.cache/lm-studio/models     ORG/NAME/*.gguf
    Ollama         OLLAMA_MODELS, else ~/.ollama/models              manifests/HOST/ORG/NAME/TAG name blobs by digest
    llama.cpp      LLAMA_CACHE, else ~/.cache/llama.cpp              *.gguf

A quantization is taken from a GGUF file's name, where every converter writes it: headers are long and their form is another
program's business until this server reads such files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_JSON_BYTES = 4 << 20
"""Of a config.json or manifest; a larger file is another kind of file."""
MAX_DEPTH = 4
"""Folders below LM Studio's root that are searched."""
_QUANTIZATION = re.compile(
    r"(?<![A-Za-z0-9])(I?Q[1-8](?:_[A-Z0-9]+)*|BF16|F16|F32|MXFP4)(?![A-Za-z0-9])", re.IGNORECASE
)
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
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

    @property
    def is_gguf(self) -> bool:
        """True for a GGUF file."""
        return self.format.startswith("GGUF")


def roots(environ: Mapping[str, str], home: Path) -> dict[str, list[Path]]:
    """The folders of each program, in the order in which they are looked through."""
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    hub = environ.get("HF_HUB_CACHE") or Path(environ.get("HF_HOME") or cache / "huggingface") / "hub"
    own = environ.get("COHORT_DOWNLOAD_DIR")
    return {
        "Hugging Face": [Path(hub)],
        "Cohort": [Path(own)] if own else [],
        "LM Studio": [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"],
        "Ollama": [Path(environ.get("OLLAMA_MODELS") or home / ".ollama" / "models")],
        "llama.cpp": [Path(environ.get("LLAMA_CACHE") or cache / "llama.cpp")],
    }


def find(folders: Mapping[str, Iterable[Path]]) -> Iterator[Found]:
    """All models below `folders` (see `roots`), each once. A folder that cannot be read is passed over."""
    look = {"Ollama": _ollama, "LM Studio": _lm_studio, "llama.cpp": _files}
    seen: set[Path] = set()
    for source, paths in folders.items():
        for root in paths:
            for found in sorted(look.get(source, _hub)(root, source), key=lambda one: one.name.lower()):
                real = found.path.resolve()
                if real not in seen:
                    seen.add(real)
                    yield found


def _hub(root: Path, source: str) -> Iterator[Found]:
    for folder in _listed(root):
        kind, *parts = folder.name.split("--")
        if kind != "models" or not 1 <= len(parts) <= 2 or not all(parts):
            continue
        name, snapshot = "/".join(parts), _snapshot(folder)
        if snapshot is None:
            yield Found(name, "?", 0, folder, source, "nothing of it was fetched")
            continue
        files = [path for path in _listed(snapshot) if path.is_file()]
        weights = [path for path in files if path.suffix == ".safetensors"]
        if weights:
            yield _checkpoint(name, snapshot, weights, source)
        yield from _gguf(files, source, lambda path, name=name: f"{name}/{path.name}")
        if not weights and not any(path.suffix == ".gguf" for path in files):
            yield Found(name, "?", 0, snapshot, source, "neither safetensors nor GGUF is here")


def _snapshot(folder: Path) -> Path | None:
    """The commit that `main` names, else the one that was changed last."""
    try:
        named = folder / "snapshots" / (folder / "refs" / "main").read_text()[:64].strip()
        if named.is_dir():
            return named
    except (OSError, ValueError):
        pass
    there = [path for path in _listed(folder / "snapshots") if path.is_dir()]
    return max(there, key=_changed, default=None)


def _checkpoint(name: str, folder: Path, weights: list[Path], source: str) -> Found:
    config = _json(folder / "config.json")
    problem = None if config else "config.json is missing or no JSON object"
    index = _json(folder / "model.safetensors.index.json").get("weight_map")
    if isinstance(index, dict):
        absent = {str(part) for part in index.values()} - {path.name for path in weights}
        if absent:
            problem = f"{len(absent)} of {len(set(index.values()))} weight files are missing"
    dtype = next((config[key] for key in _DTYPES if isinstance(config.get(key), str)), "")
    quantized = config.get("quantization_config")
    method = quantized.get("quant_method") if isinstance(quantized, dict) else None
    kind = " ".join(part for part in ("safetensors", dtype.removeprefix("torch."), str(method or "")) if part)
    return Found(name, kind, sum(map(_size, weights)), folder, source, problem)


def _lm_studio(root: Path, source: str, depth: int = MAX_DEPTH) -> Iterator[Found]:
    files = [path for path in _listed(root) if path.is_file()]
    weights = [path for path in files if path.suffix == ".safetensors"]
    if weights:
        yield _checkpoint(str(root), root, weights, source)
    yield from _gguf(files, source, str)
    for folder in _listed(root) if depth else ():
        if folder.is_dir() and not folder.is_symlink():
            yield from _lm_studio(folder, source, depth - 1)


def _files(root: Path, source: str) -> Iterator[Found]:
    return _gguf((path for path in _listed(root) if path.is_file()), source, str)


def _gguf(files: Iterable[Path], source: str, name: Any) -> Iterator[Found]:
    """A row per model: the first of several parts stands for all of them; files for images are no models."""
    parts = [path for path in files if path.suffix == ".gguf" and "mmproj" not in path.name.lower()]
    for path in parts:
        numbered, size, problem = _PART.search(path.name), _size(path), None
        if numbered is not None:
            if int(numbered[1]) != 1:
                continue
            stem = path.name[: numbered.start()]
            own = [
                other
                for other in parts
                if (m := _PART.search(other.name)) and other.name[: m.start()] == stem
            ]
            size = sum(map(_size, own))
            if len(own) != int(numbered[2]):
                problem = f"{int(numbered[2]) - len(own)} of {int(numbered[2])} parts are missing"
        found = _QUANTIZATION.findall(path.stem)
        yield Found(name(path), f"GGUF {found[-1].upper()}" if found else "GGUF", size, path, source, problem)


def _ollama(root: Path, source: str) -> Iterator[Found]:
    base = root / "manifests"
    for host in _listed(base):
        for organisation in _listed(host):
            for model in _listed(organisation):
                for tag in _listed(model):
                    official = (host.name, organisation.name) == ("registry.ollama.ai", "library")
                    before = "" if official else f"{organisation.name}/"
                    yield _manifest(root, tag, f"{before}{model.name}:{tag.name}", source)


def _manifest(root: Path, path: Path, name: str, source: str) -> Found:
    manifest = _json(path)
    layers = manifest.get("layers")
    model = [
        layer
        for layer in (layers if isinstance(layers, list) else ())
        if isinstance(layer, dict) and layer.get("mediaType") == "application/vnd.ollama.image.model"
    ]
    if not model:
        return Found(name, "?", 0, path, source, "its manifest names no model")
    blob = _blob(root, model[0])
    config = manifest.get("config")
    kind = _json(_blob(root, config)).get("file_type") if isinstance(config, dict) else None
    size, problem = _size(blob), None if blob.is_file() else "its file is missing"
    return Found(name, f"GGUF {kind}" if isinstance(kind, str) else "GGUF", size, blob, source, problem)


def _blob(root: Path, layer: Mapping[str, Any]) -> Path:
    return root / "blobs" / re.sub(r"[^A-Za-z0-9-]", "-", str(layer.get("digest", "")))


def _listed(folder: Path) -> list[Path]:
    """What lies in a folder, in order; nothing if it is none or may not be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _json(path: Path) -> dict[str, Any]:
    """A JSON object, {} for anything else."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            return {}
        read = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
