"""The generic decoder: every family of `families.py` runs through this one forward.

    embed -> [ norm -> mixer -> (norm) -> +    norm -> feed-forward -> (norm) -> + ] -> norm

The family's row names the kinds of mixers and feed-forwards, see `layers/`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F

from executors.kernels.cpu import ACTIVATIONS, BLOCK, STORED_KINDS, CpuKernels, PackedWeight, StoredRows
from executors.llm.device.ranges import Ranges, no_ranges
from executors.llm.model import parameters as naming
from executors.llm.model.api import ForwardInput, FusedForward
from executors.llm.model.caches import CacheSpec, LayerMemory, cache_specs, indices_in_groups
from executors.llm.model.config import DecoderConfig
from executors.llm.model.cuts import Cut
from executors.llm.model.fp8 import Fp8Plan
from executors.llm.model.layer_inputs import LayerInputs
from executors.llm.model.layers.base import LayerStep, PackingPlan, Share
from executors.llm.model.layers.layer import Layer
from executors.llm.model.layers.norms import Norm
from executors.llm.model.linear import (
    KIND_NAMES,
    Linear,
    Packing,
    StoredFormat,
    StoredParts,
    can_pack_onednn,
    padded_rows,
)
from executors.llm.model.places import Place
from executors.llm.model.rope import query_factors, rotary_table
from executors.llm.model.rotated_linears import rotate_linears
from executors.llm.model.row_table import RowTable
from executors.llm.model.stored_transform import StoredMatrix
from executors.llm.model.stored_weight import StoredEmbedding


class Decoder:
    """A decoder-only transformer whose parameters are allocated but not filled: see `weights.py` and `parameters()`.

    The memory of the parameters is untouched until they are loaded. Call `finish` and `prepare` before the first forward.

    With `kernels`, linear layers are packed for the kernels while they are loaded, in int8 or int4 if `quantization` says so (see
    `packing`), and the embedding may stay in its file (`embed_mapped`, any float dtype), because it is only looked up by rows.
    `each_layer(decoder, index, layer)` is called as soon as a layer exists and may change how its linear layers store weights:
    `checkpoint/fp8_layers.py` does so according to the plan `fp8`.

    `stored` maps checkpoint names to the formats in which the file holds them quantized. With `kernels` and without
    `quantization`, the linear layers keep these formats, and so does the embedding (`stored_embed`), which stays in its file.
    """

    share = Share()
    """What layers get from other ranks."""
    alone = True
    """Whether this is the whole model, which one call may compute; False for a rank's part."""
    first_layer = 0
    """Number of the first layer in the whole model."""
    cuts: Mapping[str, Cut] = {}
    """Parts of tensors, by checkpoint names, that are loaded instead of the whole."""
    elsewhere: Collection[str] = ()
    """Checkpoint names of tensors of the whole model that other stages have."""
    mtp_used = False
    """Whether the checkpoint's MTP head is loaded beside the model."""
    mtp_fault: str | None = None
    """Why it is not, where it was wished for and cannot be."""

    def __init__(
        self, config: DecoderConfig, dtype: torch.dtype, device: torch.device, kernels: CpuKernels | None = None,
        quantization: str | None = None, fp8: Fp8Plan | None = None,
        each_layer: Callable[[Decoder, int, Layer], None] | None = None,
        stored: Mapping[str, StoredFormat] | None = None,
    ) -> None:  # fmt: skip
        assert fp8 is None or each_layer is not None, "a plan needs its callback"
        self.config = config
        self.dtype = dtype
        self.device = device
        self.quantization = quantization
        self.fp8 = fp8
        self.kv_dtype: torch.dtype | None = None
        self.kv_scales: tuple[tuple[float, float], ...] = ()
        self.embed_mapped = False
        self.stored_embed: StoredRows | StoredEmbedding | None = None
        self.keeps_stored = kernels is not None and quantization is None and bool(stored)
        """Whether weights that a file holds quantized keep their format."""
        self.kernels = kernels
        self._fused: FusedForward | None = None
        self.ranges: Ranges = no_ranges
        """Names parts of a forward for profilers."""
        self.embed = torch.empty(config.vocab_size, config.hidden_size, dtype=dtype, device=device)
        self.position_embed: torch.Tensor | None = None
        if config.family.names.positions:
            shape = config.max_context_length, config.hidden_size
            self.position_embed = torch.empty(shape, dtype=dtype, device=device)
        # Rounded as the family rounds it: a root is a tensor of the embedding's dtype, a field a number.
        root = config.family.stream.embed_scaled
        self.embed_scale = float(torch.tensor(config.embed_scale).to(dtype)) if root else config.embed_scale
        self.layers: list[Layer] = []
        for index, layer in enumerate(config.layers):
            self.layers.append(Layer(config, layer, dtype, device))
            if each_layer is not None:  # at once: the next layer takes the memory that this one gives up
                each_layer(self, index, self.layers[-1])
        for one, index in zip(self.layers, indices_in_groups(self._memories()), strict=True):
            one.mixer.cache_index = index
        for index, one in enumerate(self.layers):
            if one.config.kv_from is not None:
                source = self.layers[one.config.kv_from].attention
                one.mixer.cache_index, source.lends = source.cache_index, True
            if one.layer_input is not None:
                one.layer_input.index = index
        self.layer_inputs = LayerInputs(config, dtype, device) if config.layer_input_size else None
        self.final_norm = Norm(config.family.stream.norm, config.hidden_size, config.norm_eps, dtype, device)
        self.lm_head = Linear(
            0 if config.tied else config.vocab_size, config.hidden_size, False, dtype, device
        )
        if config.tied:
            self.lm_head.weight = self.embed
        self.classifier: torch.Tensor | None = None
        """Head of a model with labels, [labels, hidden]."""
        if config.num_labels:
            self.classifier = torch.empty(config.num_labels, config.hidden_size, dtype=dtype, device=device)
        self._onednn = False
        self.rotary: list[torch.Tensor] = []
        self.query_factors: torch.Tensor | None = None
        """What queries are multiplied by, float32 [positions]; None if nothing is."""
        self.matrices: list[StoredMatrix] = []
        """Those of transforms around linear layers that the checkpoint has."""
        if config.transforms is not None:
            self.matrices = rotate_linears(self, config.transforms)
        if kernels is not None:
            self._reserve(kernels, stored if stored and self.keeps_stored else {})

    def _reserve(self, kernels: CpuKernels, stored: Mapping[str, StoredFormat]) -> None:
        parts_of = self.kept_parts(stored)
        for linear, how in self.packing(self.quantization):
            if parts := parts_of.get(id(linear)):
                linear.reserve_stored(kernels, parts, how.gated)
            else:
                linear.reserve(kernels, how.kind, how.gated)

    def keep_head_on_device(self, parts: StoredParts) -> None:
        """Keep a head in the format of its file, see `Linear.keep_on_device`, and the embedding with it if they are tied."""
        self.lm_head.keep_on_device(parts, self.device)
        weight = self.lm_head.on_device
        if self.config.tied and weight is not None:
            self.stored_embed = StoredEmbedding(weight, self.dtype)
            self.embed = torch.empty(self.embed.shape, dtype=self.dtype, device="meta")
            self.lm_head.weight = self.embed
            self.embed_mapped = True

    def kept_parts(self, stored: Mapping[str, StoredFormat]) -> dict[int, StoredParts]:
        """Map the id of each linear layer that can keep the formats of its file to its parts; `stored`: formats by checkpoint
        names. Parts whose columns are in different orders cannot be multiplied together."""
        parts_of = {}
        for linear, parts in naming.linear_parts(self.places()).items() if stored else ():
            if (stored_as := stored_parts(parts, stored, STORED_KINDS)) is not None:
                parts_of[linear] = stored_as
        return parts_of

    def packing(self, quantization: str | None) -> Iterator[tuple[Linear, Packing]]:
        """Yield each linear layer with its layout for the kernels. int4: layers whose columns are no multiple of 32, and the
        head, are int8."""
        plain = KIND_NAMES[self.dtype]
        kind = quantization if quantization in ("int8", "int4") else plain
        plan = PackingPlan(kind, plain, self.config.activation in ACTIVATIONS)
        for layer in self.layers:
            for sublayer in layer.sublayers:
                yield from map(_whole_blocks, sublayer.packing(plan))
        if self.layer_inputs is not None:
            yield _whole_blocks((self.layer_inputs.projection, Packing(plan.kind)))
        yield self.lm_head, Packing(plain if kind == plain else "int8")

    def be_steady(self) -> None:
        """Make a token's hidden state independent of the rest of its step, bit for bit; used for `--deterministic`. Linear
        layers and attention must run on Cohort's kernels for that. Torch's norms, softmax and sums treat rows independently."""
        for layer in self.layers:
            layer.be_steady()
        for linear in self.linears():
            if linear.rotation is not None:
                linear.rotation.be_steady()

    def keep_embedding(self, raw: torch.Tensor, kind: str) -> None:
        """Look up embeddings in `raw`, uint8 [vocabulary, bytes of a row] in a format of STORED_KINDS, such as a view of a
        file. This frees the memory of the embedding, which is still untouched."""
        assert self.kernels is not None
        self.stored_embed = StoredRows(self.kernels, raw, self.config.hidden_size, kind)
        self.embed = torch.empty(self.embed.shape, dtype=self.dtype, device="meta")
        if self.config.tied:
            self.lm_head.weight = self.embed
        self.embed_mapped = True

    def finish(self) -> None:
        """Finish packing. Called once, when all parameters are loaded."""
        if self.kernels is not None:
            for linear in self.linears():
                linear.finish()
            for layer in self.layers:
                for sublayer in layer.sublayers:
                    sublayer.use_kernels(self.kernels)

    def pack_onednn(self) -> int:
        """Pack the linear layers in oneDNN's layout if Cohort's kernels are not used and oneDNN supports it. Call it after
        loading, because `parameters()` is unavailable afterwards. Returns the memory that this took, in bytes."""
        if self.kernels is not None or not can_pack_onednn(self.dtype, self.device):
            return 0
        for linear in self.linears():
            linear.pack_onednn()
        self._onednn = True
        # A tied head is packed too: it is the largest product of a decode step. The embedding stays for look-ups.
        return self.embed.numel() * self.embed.element_size() if self.config.tied else 0

    @property
    def packed(self) -> bool:
        """Whether the linear layers are packed for this CPU."""
        return self.kernels is not None or self._onednn

    @property
    def row_table(self) -> RowTable | None:
        """The table of which each token reads a row for all layers, if the model has one."""
        return None if self.layer_inputs is None else self.layer_inputs.table

    @property
    def maps_embedding(self) -> bool:
        """Whether the embedding may stay in its file."""
        return self.kernels is not None

    def linears(self) -> list[Linear]:
        """Return all linear layers, the head last."""
        beside = [] if self.layer_inputs is None else [self.layer_inputs.projection]
        return [*(linear for layer in self.layers for linear in layer.linears), *beside, self.lm_head]

    def prepare(self, max_model_len: int) -> None:
        """Build the rotary tables for sequences of at most `max_model_len` tokens. Called before the first forward."""
        ropes = self.config.ropes
        self.rotary = [rotary_table(rope, max_model_len, self.device) for rope in ropes]
        self.query_factors = query_factors(ropes[0], max_model_len, self.device) if ropes else None

    def fuse(self, forward: FusedForward) -> None:
        """Use `forward` for the layers whenever it supports the attention."""
        self._fused = forward

    @property
    def fused(self) -> bool:
        """Whether one call computes all layers."""
        return self._fused is not None

    @property
    def whole(self) -> DecoderConfig:
        """Configuration of the whole model, of which this may be a part."""
        return self.config

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """The groups of memory that the layers need beside weights."""
        return cache_specs(self._memories(), self.dtype, self.device, self.kv_dtype, self.kv_scales)

    def _memories(self) -> list[LayerMemory | None]:
        return [layer.memory() for layer in self.layers]

    @torch.inference_mode()
    def unified_forward(self, inputs: ForwardInput) -> torch.Tensor:
        """Compute hidden states [T, hidden] after the final norm, for any mix of sequences."""
        tokens = len(inputs.token_ids)
        if self._fused is not None and self._fused.takes(inputs.attend):
            return self._fused(inputs)
        if self._onednn and (padded := padded_rows(tokens)) != tokens:
            # Once here rather than in every linear. Nothing reads the rows behind the last token.
            inputs = _padded(inputs, padded)
        rotary = [table.index_select(0, inputs.positions) for table in self.rotary]
        factors = self.query_factors
        factors = None if factors is None else factors.index_select(0, inputs.positions)
        x = self._embedded(inputs)
        of_layers = None if self.layer_inputs is None else self.layer_inputs(inputs.token_ids, x)
        step = LayerStep(inputs, rotary, self.share, factors, of_layers)
        for index, layer in enumerate(self.layers):
            with self.ranges("layer", index):
                x = layer.forward(x, step)
        return self._finished(x[:tokens])

    def _embedded(self, inputs: ForwardInput) -> torch.Tensor:
        """Return what the first layer gets, [T, hidden]."""
        x = self.look_up(inputs.token_ids)
        if self.embed_scale != 1.0:
            x = x * self.embed_scale
        if self.position_embed is not None:
            x = x + self.position_embed.index_select(0, inputs.positions)
        return x

    def _finished(self, x: torch.Tensor) -> torch.Tensor:
        """Return the hidden states, given what the last layer returned."""
        return self.final_norm(x)

    def look_up(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [n, hidden] of tokens [n], in the model's dtype."""
        stored = self.stored_embed
        rows = self.embed.index_select(0, token_ids) if stored is None else stored.look_up(token_ids)
        return rows.to(self.dtype)

    # One forward serves all three; having them lets a model without a unified forward take this one's place.
    prefill = unified_forward
    batch_decode = unified_forward

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Compute logits [rows, vocabulary] of hidden states [rows, hidden].

        They are float32 if the head is packed for Cohort's kernels, so that rounding does not hide the best token; otherwise
        they have the model's dtype. `out`, if given, receives them.
        """
        if out is not None and self.writes_logits:
            assert self.lm_head.weight is not None
            return torch.mm(hidden, self.lm_head.weight.t(), out=out)
        logits = self._altered(self.lm_head.wide(hidden))
        return logits if out is None else out.copy_(logits)

    def _altered(self, logits: torch.Tensor) -> torch.Tensor:
        """Divide and cap logits [rows, vocabulary] in place: each new tensor of them would be as many fresh pages."""
        cap, divisor = self.config.final_softcap, self.config.logits_divisor
        if divisor != 1.0:
            logits.div_(divisor)
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    @torch.inference_mode()
    def label_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute logits [rows, labels] of hidden states [rows, hidden] with the classification head, in float32; with lm_head,
        as `logits` does, if the model has none."""
        if self.classifier is None:
            return self.logits(hidden)
        return F.linear(hidden.float(), self.classifier.float())

    @property
    def writes_logits(self) -> bool:
        """Whether `logits` writes directly into `out` and allocates no memory of its own."""
        head, c = self.lm_head, self.config
        return head.plain and head.bias is None and c.final_softcap is None and c.logits_divisor == 1.0

    @torch.inference_mode()
    def logits_for_sampling(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute the same as `logits`, valid until the next call. Where they cost nothing extra, also return the maxima of
        blocks of each row, float32 [rows, blocks]; all blocks but the last have the same size."""
        c, head = self.config, self.lm_head
        if head.packed is None or head.rotation is not None:
            return self.logits(hidden), None
        assert isinstance(head.packed, PackedWeight)
        logits, maxima = head.packed.with_maxima(hidden)
        if c.final_softcap is None and c.logits_divisor == 1.0:
            return logits, maxima
        # A rounding may make another one the largest of its block, so that the maxima are not altered alike.
        return self._altered(logits), None

    def parameters(self) -> dict[str, torch.Tensor]:
        """Map checkpoint names to the memory that each tensor is copied into, see `parameters.py`."""
        return naming.parameters(self)

    def head_norms(self) -> frozenset[str]:
        """Names in `parameters()` whose checkpoint tensor is broadcast over heads."""
        return naming.head_norms(self)

    def adapter_bytes_per_rank(self) -> int:
        """Return the bytes of a LoRA adapter of rank 1 for all weights of linear layers that adapters may change."""
        served = {id(linear) for layer in self.layers for linear in layer.adapted_linears()}
        elements = sum(
            sum(place.tensor.shape)
            for place in self.places().values()
            if place.linear is not None and id(place.linear) in served
        )
        return elements * self.dtype.itemsize

    def places(self) -> dict[str, Place]:
        """Map checkpoint names to the places of tensors, see `parameters.py`."""
        return naming.places(self)

    def owns(self, name: str) -> bool:
        """Return whether a checkpoint's tensor is for this model, and not for an MTP head beside it."""
        head = self.config.family.mtp
        return not (head and name.startswith(head))

    def num_parameters(self) -> int:
        """Count the elements as the checkpoint does, a tied head once."""
        shared = self.head_norms()
        return sum(t.shape[-1] if name in shared else t.numel() for name, t in self.parameters().items())

    def num_bytes(self) -> int:
        """Bytes of memory that the parameters and the rotary tables take. A mapped embedding takes no memory of its own."""
        alone = [place.tensor for place in self.places().values() if place.linear is None]
        # A tied embedding that is in memory, beside the packed head that it is.
        embedded = self.config.tied and self.kernels is not None and not self.embed_mapped
        matrices = [one.matrix for one in self.matrices]
        factors = [] if self.query_factors is None else [self.query_factors]
        tensors = [*alone, *self.rotary, *factors, *matrices, *([self.embed] if embedded else [])]
        if self.embed_mapped:
            tensors = [tensor for tensor in tensors if tensor is not self.embed]
        if (table := self.row_table) is not None and table.in_file:
            tensors = [tensor for tensor in tensors if tensor is not table.weight]
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return num_bytes + sum(linear.num_bytes for linear in self.linears())


def _whole_blocks(pair: tuple[Linear, Packing]) -> tuple[Linear, Packing]:
    """Return a linear layer with its layout: int8 in place of int4 if its columns are no whole blocks."""
    linear, how = pair
    assert linear.weight is not None
    odd = how.kind == "int4" and linear.weight.shape[1] % BLOCK
    return linear, Packing("int8", how.gated) if odd else how


def stored_parts(
    parts: Sequence[tuple[str, int]], stored: Mapping[str, StoredFormat], supported: Container[str]
) -> StoredParts | None:
    """Return the formats of a linear layer's parts, given as (checkpoint name, rows) from the first row on. None if they cannot
    be kept: one is not in a `supported` format, or their columns are in different orders."""
    formats = [stored.get(name) for name, _ in parts]
    kinds = [one.kind for one in formats if one is not None and one.kind in supported]
    orders = [one.order for one in formats if one is not None]
    if len(kinds) < len(parts) or not _same(orders):
        return None
    rows = (count for _, count in parts)
    return StoredParts(tuple(zip(rows, kinds, strict=True)), orders[0])


def _same(orders: list[torch.Tensor | None]) -> bool:
    first, *others = orders
    return all(
        first is other or (first is not None and other is not None and torch.equal(first, other))
        for other in others
    )


def _padded(inputs: ForwardInput, rows: int) -> ForwardInput:
    """Append rows of token 0 at position 0 to the step. Attention is computed for the step's own rows only."""
    tokens = len(inputs.token_ids)
    behind = (0, rows - tokens)

    def attend(
        layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        out = inputs.attend(layer, q[:tokens], k[:tokens], v[:tokens], sinks)
        return F.pad(out, (0, 0, 0, 0, *behind))

    adapters = None if inputs.adapters is None else inputs.adapters.padded(rows)
    return ForwardInput(
        F.pad(inputs.token_ids, behind),
        F.pad(inputs.positions, behind),
        attend,
        adapters=adapters,
        states=inputs.states,
        hidden=None if inputs.hidden is None else F.pad(inputs.hidden, (0, 0, *behind)),
    )
