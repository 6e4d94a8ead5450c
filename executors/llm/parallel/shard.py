"""`Shard`: the part of a model that one rank has, and the cuts by which its tensors are loaded.

    queries, keys, values   by heads: KV heads are split, or shared by ranks if there are fewer of them than ranks
    o, down                 by columns, summed over ranks. Blocks of quantized columns stay whole: where that is impossible each
                            rank has the whole matrix, and its input is joined instead
    gate, up                by rows
    experts                 each expert as an MLP; whole on every rank if its blocks do not allow a cut, and so is the expert that
                            every token goes through. Router and gate are whole
    embedding, head         by tokens
    states                  by channels of a convolution, and by key heads with their value heads, as `state_shares.py` says
    norms, positions        whole
    layers                  by stages; the first stage has the embedding, the last norm and the head

Ranks need not have equal parts: the first ones have the larger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from executors.contract.config import ParallelConfig
from executors.contract.errors import ConfigError
from executors.gguf.types import BY_NAME
from executors.kernels.cpu import BLOCK, STORED_KINDS
from executors.kernels.device_layouts import LAYOUTS, NEST
from executors.llm.model import parameters as naming
from executors.llm.model.config import DecoderConfig
from executors.llm.model.cuts import Cut, Range
from executors.llm.model.decoder import Decoder
from executors.llm.model.layers.attention import Attention
from executors.llm.model.layers.base import Sublayer
from executors.llm.model.layers.experts import Experts
from executors.llm.model.layers.gated_attention import GatedAttention
from executors.llm.model.layers.mlp import Mlp
from executors.llm.model.layers.shared_experts import SharedExperts
from executors.llm.model.layers.sigmoid_experts import SigmoidExperts
from executors.llm.model.linear import Linear, StoredFormat
from executors.llm.parallel.state_shares import STATEFUL, Joining, StateShare, cut_ranges, share_states

_ROWS = 64
"""Rows of an embedding are cut at multiples of this number where there are enough of them."""


@dataclass(frozen=True, slots=True)
class _Split:
    """How the ranks of a stage share a dimension: a range for each."""

    ranges: tuple[Range, ...]
    joining: Joining

    def widths(self, factor: int = 1) -> tuple[int, ...]:
        return tuple(factor * (end - begin) for begin, end in self.ranges)


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of one rank. `config` describes the rank's decoder, `whole` the model. `cuts`: by usual names, for tensors that
    are not loaded whole."""

    config: DecoderConfig
    whole: DecoderConfig
    num_parameters: int
    """Number of parameters of the whole model."""
    first_layer: int
    is_first: bool
    """Whether the rank belongs to the first stage, which has embedding, last norm and head."""
    cuts: Mapping[str, Cut]
    elsewhere: frozenset[str]
    """Usual names of tensors that other stages have."""
    attention: Joining
    states: StateShare
    mlp: Joining
    experts: Joining
    shared: Joining
    """Of the expert that every token goes through."""
    head_widths: tuple[int, ...]
    """Columns of queries of each rank of the stage."""
    inner_widths: tuple[int, ...]
    vocabulary: Range
    vocabulary_widths: tuple[int, ...]
    kv_copies: int
    """Ranks of the stage that have the same KV head."""


def plan_shard(
    config: DecoderConfig, parallel: ParallelConfig, stored: Mapping[str, StoredFormat], quantization: str | None
) -> Shard:  # fmt: skip
    """Cut a model. `stored`: the formats that linear layers keep, by usual names; `quantization`: int8 or int4 if weights are
    quantized at load. Raises ConfigError for a model that cannot be cut into that many parts."""
    whole = Decoder(config, torch.float32, torch.device("meta"))
    _refuse_uncut(whole)
    size, place = parallel.tensor_parallel_size, parallel.tensor_rank
    if parallel.pipeline_parallel_size > config.num_layers:
        raise ConfigError(
            f"pipeline_parallel_size {parallel.pipeline_parallel_size}: the model has {config.num_layers} layers"
        )
    least = BLOCK if quantization else 1
    blocks = _Blocks(whole, stored, least)
    mixers = [layer.mixer for layer in whole.layers]
    outputs = [one.o for one in mixers if isinstance(one, Attention)]
    queries, keys, attention = _heads(config, size, blocks.of(outputs))
    stateful = [one for one in mixers if isinstance(one, STATEFUL)]
    states = share_states(stateful, size, place, blocks.of([one.outward for one in stateful]))
    kinds = [layer.feed_forward for layer in whole.layers]
    dense = [one for one in kinds if isinstance(one, Mlp)]
    mixed = [one for one in map(routed, kinds) if one is not None]
    shared_downs = [one.shared.down for one in kinds if isinstance(one, SharedExperts)]
    inner = _inner(config.intermediate_size, size, blocks.of([mlp.down for mlp in dense]))
    expert_downs = [expert.down for experts in mixed for expert in experts.experts]
    of_expert = _inner(
        config.moe.intermediate_size if config.moe else 0, size, blocks.of(expert_downs), joins=False
    )
    of_shared = _inner(
        config.moe.shared_size if config.moe else 0, size, blocks.of(shared_downs), joins=False
    )
    vocabulary = cut_ranges(config.vocab_size, size, _ROWS if config.vocab_size >= size * _ROWS else 1)
    layers = cut_ranges(config.num_layers, parallel.pipeline_parallel_size, 1)[parallel.stage]
    is_first = parallel.stage == 0
    local = replace(
        config,
        vocab_size=vocabulary[place][1] - vocabulary[place][0] if is_first else 0,
        num_heads=_length(queries[place]),
        num_kv_heads=_length(keys[place]),
        intermediate_size=_length(inner.ranges[place]),
        moe=None if config.moe is None else replace(
            config.moe, intermediate_size=_length(of_expert.ranges[place]), shared_size=_length(of_shared.ranges[place])
        ),
        layers=config.layers[slice(*layers)],
    )  # fmt: skip
    local = states.of_rank(local)
    parts = _RankParts(
        config, queries[place], keys[place], inner.ranges[place], of_expert.ranges[place], of_shared.ranges[place],
        states,
    )  # fmt: skip
    joinings = _Joinings(attention, inner.joining, of_expert.joining, of_shared.joining)
    cuts = parts.cuts(whole, vocabulary[place], joinings, place)
    own = (layers[0] <= i < layers[1] for i in range(config.num_layers))
    elsewhere = frozenset(
        name
        for i, here in enumerate(own)
        if not here
        for name, _ in naming.of_layer(whole, i, whole.layers[i])
    )
    return Shard(
        local, config, whole.num_parameters(), layers[0], is_first, cuts, elsewhere, attention, states, inner.joining,
        of_expert.joining, of_shared.joining, tuple(config.head_dim * _length(one) for one in queries), inner.widths(),
        vocabulary[place], tuple(map(_length, vocabulary)), max(1, size // config.num_kv_heads) if attention != "whole" else size,
    )  # fmt: skip


def routed(kind: Sublayer) -> Experts | None:
    """Return the experts of a feed-forward of which a router chooses, None if it has none."""
    kind = kind.experts if isinstance(kind, SharedExperts | SigmoidExperts) else kind
    return kind if isinstance(kind, Experts) else None


def _refuse_uncut(whole: Decoder) -> None:
    """Raise ConfigError for a kind of layer that has no cut here."""
    for layer in whole.layers:
        kinds = Mlp | Experts | SharedExperts | SigmoidExperts
        plain = type(layer.mixer) in (
            Attention,
            GatedAttention,
            *STATEFUL,
        )  # a kind that is more than these has no cut
        if not plain or not isinstance(layer.feed_forward, kinds):
            kind = layer.config.feed_forward if plain else layer.config.mixer
            raise ConfigError(
                f"tensor_parallel_size, pipeline_parallel_size: layers of the kind {kind} are not cut; take 1 for both"
            )


class _Blocks:
    """How many columns of a linear layer belong to one block."""

    def __init__(self, decoder: Decoder, stored: Mapping[str, StoredFormat], least: int) -> None:
        self._of: dict[int, int | None] = {}
        self._least = least
        for name, place in decoder.places().items():
            form = stored.get(name)
            if place.linear is None or form is None or form.kind not in STORED_KINDS:
                continue
            block = self._of.get(id(place.linear), 1)
            columns = _columns_of_block(form.kind)
            whole = form.order is not None or block is None
            self._of[id(place.linear)] = None if whole else math.lcm(block or 1, columns)

    def of(self, linears: Sequence[Linear]) -> int | None:
        """Return the number of columns at whose multiples all of these layers can be cut; None if one of them cannot be."""
        sizes_or_none = [self._of.get(id(linear), self._least) for linear in linears]
        sizes = [one for one in sizes_or_none if one is not None]
        return math.lcm(*sizes) if len(sizes) == len(sizes_or_none) else None


def _columns_of_block(kind: str) -> int:
    """Return the columns of a block of one of STORED_KINDS."""
    if kind in BY_NAME:
        return BY_NAME[kind].values
    if kind in LAYOUTS and LAYOUTS[kind].nested:
        return NEST
    size = kind.rpartition("-g")[2]
    return int(size) if size.isdigit() else BLOCK


def _heads(
    config: DecoderConfig, size: int, block: int | None
) -> tuple[tuple[Range, ...], tuple[Range, ...], Joining]:
    """Return the query heads and the KV heads of each rank, and how the output is computed."""
    heads, shared = config.num_heads, config.num_kv_heads
    per_kv = heads // shared
    if size > shared and (size % shared or per_kv < size // shared):
        whole = ((0, heads),) * size, ((0, shared),) * size
        return (*whole, "whole")
    if size > shared:
        copies = size // shared
        within = cut_ranges(per_kv, copies, _unit(per_kv, copies, config.head_dim, block))
        queries = [(per_kv * kv + begin, per_kv * kv + end) for kv in range(shared) for begin, end in within]
        keys = [(kv, kv + 1) for kv in range(shared) for _ in within]
    else:
        keys = list(cut_ranges(shared, size, _unit(shared, size, per_kv * config.head_dim, block)))
        queries = [(per_kv * begin, per_kv * end) for begin, end in keys]
    fits = block is not None and all(begin * config.head_dim % block == 0 for begin, _ in queries)
    return tuple(queries), tuple(keys), "sum" if fits else "join"


def _unit(count: int, size: int, columns: int, block: int | None) -> int:
    """Return how many of `count` groups of so many columns to keep together so that they are whole blocks; 1 if there are not
    enough groups for that."""
    unit = 1 if block is None else block // math.gcd(block, columns)
    return unit if -(-count // unit) >= size else 1


def _inner(total: int, size: int, block: int | None, joins: bool = True) -> _Split:
    """Share the columns between the two matrices of an MLP."""
    if not total:
        return _Split(((0, 0),) * size, "whole")
    if block is not None:
        for unit in (math.lcm(BLOCK, block), block):
            if -(-total // unit) >= size:
                return _Split(cut_ranges(total, size, unit), "sum")
    if joins and total >= size:
        return _Split(cut_ranges(total, size, BLOCK if total >= size * BLOCK else 1), "join")
    return _Split(((0, total),) * size, "whole")


def _length(one: Range) -> int:
    return one[1] - one[0]


@dataclass(frozen=True, slots=True)
class _Joinings:
    """How the second matrices of each kind of sublayer are computed."""

    attention: Joining
    mlp: Joining
    experts: Joining
    shared: Joining


@dataclass(frozen=True, slots=True)
class _RankParts:
    """What a rank has of each kind of matrix."""

    config: DecoderConfig
    queries: Range
    keys: Range
    inner: Range
    of_expert: Range
    of_shared: Range
    states: StateShare

    def cuts(self, whole: Decoder, vocabulary: Range, joinings: _Joinings, place: int) -> dict[str, Cut]:
        """Return the cuts by names; `place`: the rank's place in its stage."""
        names = self.config.family.names
        parts_of = self._of_linears(whole, joinings)
        cuts: dict[str, Cut] = {}
        biases: dict[str, Cut] = {}
        present = whole.places()
        of_states = self.states.rows_of([layer.mixer for layer in whole.layers])
        for name, tensor in present.items():
            shape = tuple(tensor.tensor.shape)
            if tensor.linear is None and (ranges := of_states.get(id(tensor.tensor))) is not None:
                cuts[name] = Cut(shape, ranges)
                continue
            if name.startswith((f"{names.embed}.", f"{names.lm_head}.")):
                cuts[name] = Cut(shape, (vocabulary,))
                continue
            if tensor.linear is None or id(tensor.linear) not in parts_of:
                continue
            rows, columns = parts_of[id(tensor.linear)]
            shape = shape[::-1] if tensor.turned else shape
            own = _within(rows, (tensor.begin, tensor.begin + shape[0]))
            cuts[name] = Cut(shape, own, columns, tensor.turned)
            bias = f"{name.removesuffix('.weight')}.bias"
            biases[bias] = Cut(shape[:1], own, zeros=columns is not None and place > 0)
        norms = self._of_norms() | self._of_sinks() if joinings.attention != "whole" else {}
        return cuts | {name: cut for name, cut in (biases | norms).items() if name in present}

    def _of_linears(
        self, whole: Decoder, joinings: _Joinings
    ) -> dict[int, tuple[tuple[Range, ...] | None, Range | None]]:
        """Return rows and columns of the layers that are cut, by their ids."""
        c, d = self.config, self.config.head_dim
        parts_of: dict[int, tuple[tuple[Range, ...] | None, Range | None]] = {}

        def of_mlp(gate_up: Linear, down: Linear, inner: Range, total: int, joining: Joining) -> None:
            if joining == "whole":
                return
            gated = gate_up.outputs > total
            second = ((total + inner[0], total + inner[1]),) if gated else ()
            parts_of[id(gate_up)] = (inner, *second), None
            if joining == "sum":
                parts_of[id(down)] = None, inner

        of_states = self.states.rows_of([layer.mixer for layer in whole.layers])
        for layer in whole.layers:
            mixer = layer.mixer
            if isinstance(mixer, STATEFUL) and self.states.joining == "sum":
                parts_of |= {
                    id(one): (of_states[id(one)], None) for one in mixer.linears if id(one) in of_states
                }
                parts_of[id(mixer.outward)] = None, self.states.own_columns
            if isinstance(mixer, Attention) and joinings.attention != "whole":
                q, k = (d * self.queries[0], d * self.queries[1]), (d * self.keys[0], d * self.keys[1])
                each = 2 if isinstance(mixer, GatedAttention) else 1  # a head's gate is behind its query
                before, values = each * c.q_size, each * c.q_size + c.kv_size
                rows = (
                    (each * q[0], each * q[1]),
                    (before + k[0], before + k[1]),
                    (values + k[0], values + k[1]),
                )
                parts_of[id(mixer.qkv)] = rows, None
                if joinings.attention == "sum":
                    parts_of[id(mixer.o)] = None, q
            kind = layer.feed_forward
            if (experts := routed(kind)) is not None:
                assert c.moe is not None
                for expert in experts.experts:
                    total = c.moe.intermediate_size
                    of_mlp(expert.gate_up, expert.down, self.of_expert, total, joinings.experts)
                if isinstance(kind, SharedExperts):
                    shared, total = kind.shared, c.moe.shared_size
                    of_mlp(shared.gate_up, shared.down, self.of_shared, total, joinings.shared)
            elif isinstance(kind, Mlp):
                of_mlp(kind.gate_up, kind.down, self.inner, c.intermediate_size, joinings.mlp)
        return parts_of

    def _of_norms(self) -> dict[str, Cut]:
        """Norms over all heads together have an element per column."""
        names, d = self.config.family.names, self.config.head_dim
        if self.config.family.attention.qk_norm != "full":
            return {}
        kinds = (
            (names.q_norm, self.config.q_size, self.queries),
            (names.k_norm, self.config.kv_size, self.keys),
        )
        return {
            f"{name}.weight".replace("{i}", str(i)): Cut((size,), ((d * heads[0], d * heads[1]),))
            for i in range(self.config.num_layers)
            for name, size, heads in kinds
        }

    def _of_sinks(self) -> dict[str, Cut]:
        """Sinks have an element per query head."""
        name, heads = self.config.family.names.sinks, self.config.num_heads
        return {
            name.replace("{i}", str(i)): Cut((heads,), (self.queries,)) for i in range(self.config.num_layers)
        }


def _within(ranges: tuple[Range, ...] | None, part: Range) -> tuple[Range, ...] | None:
    """Return what of `ranges` lies in `part`, counted from its beginning."""
    if ranges is None:
        return None
    begin, end = part
    shared = ((max(begin, first) - begin, min(end, last) - begin) for first, last in ranges)
    return tuple((first, last) for first, last in shared if first < last)
