"""A checkpoint whose weights have other file names, under those that transformers looks for, for `cohort verify`."""

from __future__ import annotations

import json
from pathlib import Path

from executors.contract.errors import ConfigError
from executors.llm.checkpoint.files import INDEX, SINGLE, chosen_weights
from executors.llm.checkpoint.safetensors_file import SafetensorsFile


def write_usual_names(directory: Path, target: Path) -> bool:
    """Make `target`, a new directory with links to the files of a checkpoint and an index of its weights, if transformers would
    not find these by their names; return whether it did."""
    try:
        chosen = chosen_weights(directory)
    except ConfigError:
        return False  # reported where it is loaded
    if chosen.index_name == INDEX or chosen.files == (SINGLE,):
        return False
    target.mkdir()
    for path in directory.iterdir():
        if path.name in chosen.files or not path.name.endswith((".safetensors", ".safetensors.index.json")):
            (target / path.name).symlink_to(path.resolve())
    where = dict(chosen.index)
    for name in () if where else chosen.files:
        file = SafetensorsFile(directory / name)
        where |= dict.fromkeys(file.names(), name)
        file.close()
    (target / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return True
