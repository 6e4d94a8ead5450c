"""`transform_config` of a compressed-tensors checkpoint: products around linear layers, most with Hadamard matrices. No torch
here.

    {"config_groups": {NAME: {"type": "hadamard", "head_dim": null, "randomize": false, "precision": "torch.float32",
                              "requires_grad": false,
                              "apply": [{"targets": ["re:.*down_proj$"], "location": "input", "inverse": false, "ignore": []}]}}}

    weight_input, weight_output   offline: the weights in the files have the product already, and nothing is computed
    input, output                 online: a linear layer multiplies H x, or returns H y (after its bias)
    q_attn, k_cache               online: on rotated queries and keys; together they leave each score as it is

    hadamard           H is Sylvester's matrix over the square root of its size n: H(1) = 1, H(2n) = [[H, H], [H, -H]]. It is
                       symmetric and its own inverse, so `inverse` changes nothing
    random-hadamard    H is a matrix in the files, over the square root of its size; its inverse is its transpose
    random-matrix      H is a matrix in the files, and so is the inverse, if that is meant

`randomize` puts rows and columns of the first two in an order that is in the files. A file has a matrix, and an order, once for
all modules of a size, as `MODULE.NAME_input.weight` (and `.perm`) of one of them. `head_dim` makes H block-diagonal, with blocks
of that size; without, n is all columns.
`targets` and `ignore` name modules, classes of modules, or match names with "re:" from their beginning on, as `re.match` does.

The format is that of compressed-tensors 0.20 (`transform/`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from executors.contract.errors import ConfigError

_OFFLINE = ("weight_input", "weight_output")
_ONLINE = ("input", "output")
_SCORES = ("q_attn", "k_cache")
_ROTATIONS = ("hadamard", "random-hadamard")
"""Types whose matrix is orthogonal."""
_PRECISIONS = ("float64", "float32", "bfloat16", "float16")
_SCHEME_KEYS = ("type", "apply", "head_dim", "randomize", "requires_grad", "precision")
_APPLY_KEYS = ("targets", "location", "inverse", "ignore")
_LINEAR = frozenset(("Linear", "Module"))
"""Classes of a linear layer's module."""

_KINDS = (*_ROTATIONS, "random-matrix")

Location = Literal["input", "output"]
Kind = Literal["hadamard", "random-hadamard", "random-matrix"]


@dataclass(frozen=True, slots=True)
class OnlineTransform:
    """A product with H at one side of some linear layers. `block`: its `head_dim`, None for all columns. `permuted`: its
    `randomize`."""

    name: str
    kind: Kind
    location: Location
    inverse: bool
    block: int | None
    permuted: bool
    targets: tuple[str, ...]
    ignore: tuple[str, ...]

    @property
    def stored(self) -> bool:
        """Whether the matrix is in the files."""
        return self.kind != "hadamard" or self.permuted

    def covers(self, names: Collection[str]) -> bool:
        """Return whether it applies to a linear layer that has these names, of which a file uses one."""
        return _matches(self.targets, names, _LINEAR) and not _matches(self.ignore, names, _LINEAR)

    def reaches(self, name: str) -> bool:
        """Return whether it applies to a module that is no linear layer, by its name."""
        return _matches(self.targets, (name,), ()) and not _matches(self.ignore, (name,), ())


@dataclass(frozen=True, slots=True)
class Transforms:
    """The online transforms that the `quantization_config` called `where` asks for."""

    where: str
    online: tuple[OnlineTransform, ...]

    def refused(self, what: str, supported: str) -> ConfigError:
        """Return the error for something that is not supported; `supported`: what is."""
        return _refused(self.where, what, supported)


def parse_transforms(value: Any, where: str) -> Transforms | None:
    """Parse `transform_config` of the settings `value`, which are called `where` in messages; None if nothing has to be computed.
    Raises ConfigError."""
    config = value.get("transform_config") if isinstance(value, dict) else None
    if config is None or config == {}:
        return None
    if not isinstance(config, dict) or not isinstance(config.get("config_groups"), dict):
        raise ConfigError(f"{where}: transform_config has no map of config_groups")
    _known(config, ("config_groups",), "transform_config", where)
    online: list[OnlineTransform] = []
    for name, scheme in config["config_groups"].items():
        if not isinstance(scheme, dict):
            raise ConfigError(f"{where}: transform_config: {name[:80]} is not an object")
        online += _of_scheme(name, scheme, value, where)
    return Transforms(where, tuple(online)) if online else None


def _of_scheme(
    name: str, scheme: dict[str, Any], value: dict[str, Any], where: str
) -> Iterator[OnlineTransform]:
    _known(scheme, _SCHEME_KEYS, name, where)
    parts = scheme.get("apply") or []
    if not isinstance(parts, list) or not all(isinstance(one, dict) for one in parts):
        raise ConfigError(f"{where}: transform_config: {name[:80]}: apply is not a list of objects")
    scores = []
    for part in parts:
        _known(part, _APPLY_KEYS, name, where)
        location = part.get("location")
        if location in _OFFLINE:
            continue
        if location not in (*_ONLINE, *_SCORES):
            supported = ", ".join((*_OFFLINE, *_ONLINE, *_SCORES))
            raise _refused(where, f"{name}: location {location!r}", supported)
        if location in _SCORES:
            scores.append(part)
            continue
        _check_online(name, scheme, location, where)
        yield OnlineTransform(
            name, scheme["type"], location, bool(part.get("inverse")), scheme.get("head_dim"), bool(scheme.get("randomize")),
            *_names_of(name, part, where),
        )  # fmt: skip
    if scores:
        _check_scores(name, scheme, scores, value, where)


def _check_online(name: str, scheme: dict[str, Any], location: str, where: str) -> None:
    """Raise ConfigError for a scheme that cannot be computed online."""
    if (kind := scheme.get("type")) not in _KINDS:
        raise _refused(where, f"{name}: type {kind!r} at {location}", ", ".join(_KINDS))
    if scheme.get("requires_grad"):
        raise _refused(where, f"{name}: requires_grad {scheme['requires_grad']!r} at {location}", "false")
    # The product is computed in float32, which loses no more than any of these.
    precision = str(scheme.get("precision", "float32")).removeprefix("torch.")
    if precision not in _PRECISIONS:
        raise _refused(where, f"{name}: precision {precision!r}", ", ".join(_PRECISIONS))
    block = scheme.get("head_dim")
    if block is not None and (type(block) is not int or block < 1):
        raise _refused(where, f"{name}: head_dim {block!r}", "a positive number of columns")
    ways = {bool(one.get("inverse")) for one in scheme["apply"] if one.get("location") in _ONLINE}
    if kind == "random-matrix" and len(ways) > 1:
        raise _refused(where, f"{name}: random-matrix and its inverse, both online", "one of them")


def _check_scores(
    name: str, scheme: dict[str, Any], parts: list[dict[str, Any]], value: dict[str, Any], where: str
) -> None:
    """Raise ConfigError unless queries and keys of the same modules are turned by the same matrix, which cancels out."""
    by_location = {part["location"]: part for part in parts}
    same = len(parts) == 2 and len(by_location) == 2
    if same:
        q, k = (by_location[one] for one in _SCORES)
        same = _names_of(name, q, where) == _names_of(name, k, where) and bool(q.get("inverse")) == bool(
            k.get("inverse")
        )
    if not same or scheme.get("type") not in _ROTATIONS or scheme.get("requires_grad"):
        supported = "the same hadamard transform of q_attn and k_cache, which leaves the scores as they are"
        raise _refused(where, f"{name}: location {parts[0]['location']!r} in this form", supported)
    if value.get("kv_cache_scheme"):
        raise _refused(where, f"{name}: q_attn and k_cache with a kv_cache_scheme", "one of the two")


def _names_of(name: str, part: dict[str, Any], where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return targets and ignored ones."""
    lists = []
    for key in ("targets", "ignore"):
        value = part.get(key) or []
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ConfigError(f"{where}: transform_config: {name[:80]}: {key} is not a list of names")
        for one in value:
            _check_pattern(name, one, where)
        lists.append(tuple(value))
    return lists[0], lists[1]


def _check_pattern(name: str, target: str, where: str) -> None:
    if not target.startswith("re:"):
        return
    try:
        re.compile(target.removeprefix("re:"))
    except re.error as error:
        raise ConfigError(
            f"{where}: transform_config: {name[:80]}: {target[:80]!r} is no regular expression ({error})"
        ) from None


def _matches(targets: tuple[str, ...], names: Collection[str], classes: Collection[str]) -> bool:
    for target in targets:
        if target.startswith("re:"):
            if any(re.match(target.removeprefix("re:"), name) for name in names):
                return True
        elif target in names or target in classes:
            return True
    return False


def _known(value: dict[str, Any], keys: tuple[str, ...], name: str, where: str) -> None:
    unknown = sorted(set(value) - set(keys))
    if unknown:
        raise _refused(where, f"{name}: key {unknown[0]!r}", ", ".join(keys))


def _refused(where: str, what: str, supported: str) -> ConfigError:
    return ConfigError(f"{where}: transform_config: {what[:160]} is not supported; supported: {supported}")
