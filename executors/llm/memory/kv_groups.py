"""Which layers share a group of KV blocks, and how many blocks of each group a sequence uses.

    windows of the layers    512 512 None 512 512 None        groups of the layout    512, None
    places of the layers     (0, 0) (0, 1) (1, 0) (0, 2) (0, 3) (1, 1)

A window at least as long as the longest sequence hides nothing, so that its layers are in the group that keeps all tokens. In
pipelines every stage has the groups of the whole model, though a stage may have no layer of some group.

The layers of a group have equal heads. Where a model has heads of different sizes, each window has heads of its own, and windows
stay apart even if they hide nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from executors.contract.errors import ConfigError
from executors.contract.status import KvGroup, KvLayout
from executors.llm.model.caches import KvSpec


def group_windows(spec: KvSpec, max_model_len: int, draft: bool = False) -> tuple[int | None, ...]:
    """Return the windows of a model's groups in the order of the first layer of each; None for the group that keeps all tokens.

    `draft`: a draft model's KV lies in the blocks of the group that keeps all tokens. Without such a group all layers form one.

    Raises ConfigError if layers with the same window have different heads.
    """
    if spec.heads:
        heads_of = dict(zip(spec.windows, spec.heads, strict=True))
        if any(heads_of[window] != heads for window, heads in zip(spec.windows, spec.heads, strict=True)):
            raise ConfigError(
                "the model has layers of one window with different heads; supported: equal heads, or a window for each size"
            )
        windows = tuple(dict.fromkeys(spec.windows))
        if draft and None not in windows:
            raise ConfigError("a draft model beside heads of different sizes needs layers without a window")
        return windows
    limits = (
        None if window is None or window >= max_model_len else window
        for window in spec.model_windows or spec.windows
    )
    windows = tuple(dict.fromkeys(limits))
    return (None,) if draft and None not in windows else windows


def layer_places(windows: Sequence[int | None], groups: Sequence[KvGroup]) -> tuple[tuple[int, int], ...]:
    """Return (group, index within the group) of each layer; `windows` of the layers. A window that no group has belongs to the
    group that keeps all tokens."""
    group_of = {group.window: number for number, group in enumerate(groups)}
    counts: Counter[int] = Counter()
    places = []
    for window in windows:
        number = group_of[window if window in group_of else None]
        places.append((number, counts[number]))
        counts[number] += 1
    return tuple(places)


def group_specs(spec: KvSpec, groups: Sequence[KvGroup]) -> tuple[KvSpec, ...]:
    """Return the spec of each group's layers, which may be none. Raises ConfigError if the heads of a group differ."""
    places = layer_places(spec.windows, groups)
    return tuple(
        _part(spec, [i for i, (own, _) in enumerate(places) if own == number])
        for number in range(len(groups))
    )


def equal_heads(spec: KvSpec) -> tuple[KvSpec, ...]:
    """Return specs of layers with equal heads, one for each size in the order of their first layers."""
    if not spec.heads:
        return (spec,)
    return tuple(
        _part(spec, [i for i, own in enumerate(spec.heads) if own == heads])
        for heads in dict.fromkeys(spec.heads)
    )


def _part(spec: KvSpec, layers: list[int]) -> KvSpec:
    if len(layers) == spec.num_layers and not spec.heads:
        return spec
    heads = [spec.heads[i] for i in layers] if spec.heads else []
    if len(set(heads)) > 1:
        raise ConfigError("the KV of layers with different heads cannot lie in one group of blocks")
    part = replace(
        spec, num_layers=len(layers), windows=tuple(spec.windows[i] for i in layers),
        kv_scales=tuple(spec.kv_scales[i] for i in layers) if spec.kv_scales else (), model_windows=(), heads=(),
    )  # fmt: skip
    return part.with_heads(heads)


def blocks_of_sequence(window: int | None, length: int, block_size: int) -> int:
    """Return the number of blocks of a group that a sequence of `length` tokens needs for its next token."""
    blocks = math.ceil(length / block_size)
    # A window begins anywhere in a block, and ends anywhere in another.
    return blocks if window is None else min(blocks, math.ceil(window / block_size) + 1)


def draft_group(layout: KvLayout) -> int:
    """Return the number of the group in whose blocks a draft model's KV lies: the one that keeps all tokens."""
    return next(number for number, group in enumerate(layout.groups) if group.window is None)


def draft_layout(layout: KvLayout, draft: KvSpec) -> KvLayout:
    """Return the layout of a draft model's KV in the blocks of `draft_group`: all its layers keep all tokens.

    It has one group, or one for each window where heads differ. All of them have the same blocks and the same block tables.
    Raises ConfigError as `group_windows`.
    """
    blocks = layout.groups[draft_group(layout)]
    return replace(layout, groups=tuple(replace(blocks, window=window) for window in _draft_windows(draft)))


def draft_parts(draft: KvSpec) -> tuple[KvSpec, ...]:
    """Return the spec of each group of `draft_layout`. Raises ConfigError as `group_windows`."""
    return group_specs(draft, [KvGroup(0, 0, window) for window in _draft_windows(draft)])


def _draft_windows(draft: KvSpec) -> tuple[int | None, ...]:
    return group_windows(draft, 0) if draft.heads else (None,)
