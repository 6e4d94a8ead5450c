"""Models in Ollama's store: manifests/HOST/ORG/NAME/TAG are JSON and name blobs/sha256-DIGEST, GGUF files among them.

llama3.2:1b     manifests/registry.ollama.ai/library/llama3.2/1b
org/name:tag    manifests/*/org/name/tag
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.model_files.ollama_package import MODEL, PREFIX, Package, package_of
from server.model_files.small_json import read_object

LATEST = "latest"
"""Tag of a name without one."""
SERVICE = Path("/usr/share/ollama/.ollama/models")
"""The store of the service that Ollama's installer sets up on Linux: the home directory of its user, `ollama`."""
OFFICIAL = ("registry.ollama.ai", "library")
_NAME = re.compile(r"(?:(?P<organisation>[\w.-]+)/)?(?P<model>[\w.-]+)(?::(?P<tag>[\w.-]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A model of the store. `path`: its GGUF file, which may be missing; None if the manifest names no model. `kind`: its
    quantization. `root`: the store; `layers`: all layers of the manifest."""

    name: str
    path: Path | None
    kind: str | None
    root: Path = Path()
    layers: tuple[Mapping[str, Any], ...] = ()

    def package(self) -> Package:
        """Read what the manifest names beside the model. Raises ConfigError naming the model and the layer."""
        return package_of(self.name, list(self.layers), lambda layer: _blob(self.root, layer))


def stores(environ: Mapping[str, str], home: Path | None) -> list[Path]:
    """Return the folders of Ollama's stores, whether they exist or not: the user's, and that of the service which Ollama's
    installer makes. `home`: None for a user without one."""
    if own_folder := environ.get("OLLAMA_MODELS"):
        return [Path(own_folder)]
    return [*([] if home is None else [home / ".ollama" / "models"]), SERVICE]


def find(name: str, root: Path | None = None) -> Manifest | None:
    """Return a model by its name in Ollama, with a GGUF file that is there; None if no store has it. `root`: the store to look
    into, None for all. Raises ConfigError for a manifest that names a model in another form."""
    match = _NAME.fullmatch(name)
    if match is None or ".." in name:
        return None
    if root is None:
        try:
            roots = stores(os.environ, Path.home())
        except RuntimeError:  # a user without a home directory
            roots = stores(os.environ, None)
        return next((model for one in roots if (model := find(name, one)) is not None), None)
    tag = match["tag"] or LATEST
    if match["organisation"] is None:
        paths = [root.joinpath("manifests", *OFFICIAL, match["model"], tag)]
    else:
        hosts = listed(root / "manifests")
        paths = [host / match["organisation"] / match["model"] / tag for host in hosts]
    for path in paths:
        model = read(root, path, name) if is_file(path) else None
        if model is not None and model.path is None:
            model.package()  # raises if it is a model of another form
        if model is not None and model.path is not None and is_file(model.path):
            return model
    return None


def manifests(root: Path) -> Iterator[tuple[Path, Manifest]]:
    """Yield the path and content of each manifest, by the names that Ollama shows."""
    for host in listed(root / "manifests"):
        for organisation in listed(host):
            for model in listed(organisation):
                for tag in listed(model):
                    official = (host.name, organisation.name) == OFFICIAL
                    before = "" if official else f"{organisation.name}/"
                    yield tag, read(root, tag, f"{before}{model.name}:{tag.name}")


def read(root: Path, path: Path, name: str) -> Manifest:
    """Read one manifest. Anything that is none names no model."""
    manifest = read_object(path)
    listed_layers = manifest.get("layers")
    layers = tuple(
        layer
        for layer in (listed_layers if isinstance(listed_layers, list) else ())
        if isinstance(layer, dict) and layer
    )
    models = [layer for layer in layers if layer.get("mediaType") == PREFIX + MODEL]
    if not models:
        return Manifest(name, None, None, root, layers)
    config = manifest.get("config")
    kind = read_object(_blob(root, config)).get("file_type") if isinstance(config, dict) else None
    return Manifest(name, _blob(root, models[0]), kind if isinstance(kind, str) else None, root, layers)


def listed(folder: Path) -> list[Path]:
    """Return what lies in a folder, in order; nothing if there is no such folder or it may not be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def is_file(path: Path) -> bool:
    """Return whether `path` is a file that may be looked at: a folder may show the names alone of what lies in it."""
    try:
        return path.is_file()
    except OSError:
        return False


def _blob(root: Path, layer: Mapping[str, Any]) -> Path:
    return root / "blobs" / re.sub(r"[^A-Za-z0-9-]", "-", str(layer.get("digest", "")))
