"""Which safetensors files of a directory or a repository hold a model's weights, by their names. No library, no file is read.

    model.safetensors.index.json      the files that it names
    model.safetensors                 this file alone
    NAME.safetensors.index.json       the files that it names
    NAME-00001-of-00003.safetensors   all shards of a set, of which none may be missing
    any others                        all of them, as vLLM does; no tensor may be in two of them

Adapters and states of an optimizer are no weights. `consolidated*.safetensors`, in which Mistral publishes a second copy in a
layout of its own, counts where there is nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from executors.contract import ConfigError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SUFFIX, INDEX_SUFFIX = ".safetensors", ".safetensors.index.json"
_SHARD = re.compile(r"(?P<stem>.+?)[-_.]?(?P<number>\d+)[-_]of[-_](?P<count>\d+)\.safetensors")
_SECOND_COPY = re.compile(r"consolidated[.-]")
_OTHER_THINGS = re.compile(
    r"(adapter|adapters|adapter_model|optimizer|scheduler|training_args|trainer_state|rng_state|random_states)[-_.\d]|.*lora",
    re.IGNORECASE,
)
_USUAL_STEM = "model"
_MOST_SHARDS = 100_000


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """`files`: those to open, in order; () if there are none. `index`: the file of each tensor as `index_name` says it; both
    empty without an index."""

    files: tuple[str, ...] = ()
    index: Mapping[str, str] = field(default_factory=dict)
    index_name: str = ""


def has_weights(names: Collection[str]) -> bool:
    """Return whether there are safetensors files of weights, or an index of them, among these names of files."""
    return any(name.endswith((SUFFIX, INDEX_SUFFIX)) and not _OTHER_THINGS.match(name) for name in names)


def is_second_copy(name: str) -> bool:
    """Return whether a file has the name that Mistral gives its own layout."""
    return _SECOND_COPY.match(name) is not None


def index_of(names: Collection[str]) -> str | None:
    """Return the index among these names of files, None if there is none. Raises ConfigError for several, of which none has the
    usual name."""
    if INDEX in names:
        return INDEX
    if SINGLE in names:
        return None
    indexes = sorted(
        name
        for name in names
        if name.endswith(INDEX_SUFFIX) and not _OTHER_THINGS.match(name) and not is_second_copy(name)
    )
    if len(indexes) > 1:
        raise ConfigError(
            f"{indexes[0]} and {indexes[1]} are two indexes of weights; keep one, or name it {INDEX}"
        )
    return indexes[0] if indexes else None


def weight_files(
    names: Collection[str], index_name: str | None, index: Mapping[str, object] | None
) -> WeightFiles:
    """Choose among files with these `names`. `index`: the object in the file `index_name`, which `index_of` named. Raises
    ConfigError, which names the file that is broken or missing, and leaves out where it was looked for.

    A file of the index may be missing: it may hold nothing that the model needs.
    """
    if index_name is None:
        return WeightFiles(_without_index(names))
    shards = _weight_map(index_name, index or {})
    files = tuple(sorted(set(shards.values())))
    missing = [shard for shard in files if shard not in names]
    if missing and SINGLE in names and SINGLE not in files:
        return WeightFiles((SINGLE,))  # the shards were joined, and their index stayed
    if len(missing) == len(files) and (others := _without_index(names)):
        return WeightFiles(others)
    return WeightFiles(files, shards, index_name)


def _weight_map(name: str, index: Mapping[str, object]) -> dict[str, str]:
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(one, str) for one in shards.values()):
        raise ConfigError(f"{name}: field weight_map is missing or not a map from tensors to files")
    for shard in shards.values():
        if not shard or "/" in shard or "\\" in shard or shard in (".", ".."):
            raise ConfigError(f"{name}: {shard!r} is not a file name in the same directory")
    return shards


def _without_index(names: Collection[str]) -> tuple[str, ...]:
    """Return the files that hold weights where no index names them."""
    if SINGLE in names:
        return (SINGLE,)
    files = [name for name in sorted(names) if name.endswith(SUFFIX) and not _OTHER_THINGS.match(name)]
    usual = [name for name in files if not is_second_copy(name)]
    files = usual or files
    shards = {name: match for name in files if (match := _SHARD.fullmatch(name))}
    if any(match["stem"] == _USUAL_STEM for match in shards.values()):
        shards = {name: match for name, match in shards.items() if match["stem"] == _USUAL_STEM}
        files = [name for name in files if name in shards or not _SHARD.fullmatch(name)]
    sets: dict[tuple[str, str], list[int]] = {}
    for match in shards.values():
        sets.setdefault((match["stem"], match["count"]), []).append(int(match["number"]))
    for name, match in shards.items():
        _refuse_gap(name, match, sets[match["stem"], match["count"]])
    return tuple(files)


def _refuse_gap(name: str, match: re.Match[str], there: list[int]) -> None:
    """Raise ConfigError if a shard of the set that `name` belongs to is missing."""
    count = int(match["count"])
    if not 0 < count < _MOST_SHARDS:
        raise ConfigError(f"{name}: its name says that it is one of {match['count']} shards")
    first = 0 if 0 in there else 1  # some savers count from 0
    gap = next((number for number in range(first, first + count) if number not in there), None)
    if gap is not None:
        begin, end = match.span("number")
        absent = f"{name[:begin]}{gap:0{end - begin}}{name[end:]}"
        raise ConfigError(f"{absent} is missing: there are {len(there)} of {count} shards and no index")
