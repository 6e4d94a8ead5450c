"""Every launch of Cohort's Triton kernels that a GPU would see, recorded where there is none.

Whole steps run over tensors of torch's "meta" device, which have shapes and types and no memory: the executor's own classes
choose kernels and arguments, and Triton's hook takes each launch down in place of compiling it. Nothing here knows what
arguments a kernel has. To be called where kernels are not interpreted: without TRITON_INTERPRET.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction

from benchmarks.gpu.narrow_kv import FORMS, STORED
from executors.kernels import triton as package
from executors.kernels.lora_tiles import most_tiles
from executors.kernels.shaping_layout import result_words, row_words
from executors.kernels.triton import tuning
from executors.kernels.triton.decode_attention import DecodeWorkspace, decode_attention
from executors.kernels.triton.extend_attention import FASTEST, MASKED, LoopOptions
from executors.kernels.triton.lora import add_lora
from executors.kernels.triton.shared_extend import (
    ExtendWorkspace,
    shared_extend_attention,
    tuned,
)
from executors.llm.attention.triton_attention import TritonAttention, piece_rule, tile_rule
from executors.llm.checkpoint.device_layers import keep, keep_head
from executors.llm.checkpoint.fp8_layers import hold
from executors.llm.fused.triton_experts import triton_experts
from executors.llm.kernel_support.kernel_choice import fuse
from executors.llm.lora.device import DeviceWeights
from executors.llm.memory import int8_kv
from executors.llm.memory.kv_cache import KvCache
from executors.llm.memory.paged_kv import PagedKv
from executors.llm.model.caches import KvSpec, kv_group
from executors.llm.model.config import DecoderConfig, parse_config
from executors.llm.model.decoder import Decoder
from executors.llm.model.fp8 import E4M3, Fp8Plan
from executors.llm.model.layers.experts import Experts
from executors.llm.model.layers.mlp import Mlp
from executors.llm.model.linear import StoredFormat
from executors.llm.parallel.shard import routed
from executors.llm.sampling.triton_sampler import TritonSampler
from executors.llm.step.launched.graphs import MIXED_TOKENS, adapted_shapes, decode_shapes, mixed_shapes
from executors.llm.step.launched.inputs import DeviceStep, DeviceTables, StepShape, num_words
from executors.llm.step.launched.program import DeviceProgram
from executors.llm.step.runner import ModelRunner
from tests.executors.checkpoints import with_sinks

HOPPER = GPUTarget("cuda", 90, 32)
PROCESSORS = 132
"""Multiprocessors of an H200: they decide how keys are cut."""
META = torch.device("meta")
MAX_LEN, MAX_ROWS, MAX_TOKENS = 40_960, 256, 8192
_LORAS = 9
"""LoRA adapters that a step may have: eight and one more, as a server reserves memory for."""
_SMALL: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 1,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "max_position_embeddings": 40960, "hidden_act": "silu", "tie_word_embeddings": True,
}  # fmt: skip
"""Qwen3-0.6B, one layer of it: the others launch the same."""
_LARGE = _SMALL | {
    "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "tie_word_embeddings": False,
}  # fmt: skip
_GEMMA = _SMALL | {
    "architectures": ["Gemma2ForCausalLM"], "num_hidden_layers": 2, "hidden_size": 3584, "intermediate_size": 14336,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256000, "sliding_window": 4096,
    "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
"""Gemma 2 9B: a layer with a window and one without."""
_MISTRAL = _SMALL | {
    "architectures": ["MistralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "vocab_size": 32000, "sliding_window": 4096, "tie_word_embeddings": False,
}  # fmt: skip
_QWEN2 = _SMALL | {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip
"""Qwen2.5-7B: biases."""
_GEMMA1 = _SMALL | {
    "architectures": ["GemmaForCausalLM"], "hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8,
    "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 256000, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
"""Gemma 2B, the first: factors of norms are stored less one."""
_MOE = _SMALL | {
    "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32,
    "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
"""Qwen3-30B-A3B."""
_SHARED = _MOE | {
    "architectures": ["Qwen2MoeForCausalLM"], "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 60,
    "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "norm_topk_prob": False,
}  # fmt: skip
"""Qwen1.5-MoE-A2.7B: an expert of every token."""
_GLM4 = _SMALL | {
    "architectures": ["Glm4ForCausalLM"], "hidden_size": 4096, "intermediate_size": 13696, "num_attention_heads": 32,
    "num_key_value_heads": 2, "vocab_size": 151552, "tie_word_embeddings": False,
}  # fmt: skip
"""GLM-4-9B: rotation of neighbours."""
_HUNYUAN = _SMALL | {
    "architectures": ["HunYuanDenseV1ForCausalLM"], "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32,
    "vocab_size": 120818,
}  # fmt: skip
"""Hunyuan-4B: norms behind rotation."""
_MINISTRAL = _SMALL | {
    "architectures": ["Ministral3ForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "vocab_size": 131072, "tie_word_embeddings": False,
}  # fmt: skip
"""Ministral-3-8B: queries that grow."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model as it is served. `fields` of its config.json; `fp8`: "rows" or "blocks" of its weights share a scale; `stored`:
    formats of its weights as a file holds them, in turn; `narrow`: KV in e4m3, `whole`: in int8. `every`: all steps that have a
    graph, else those that differ most. `lora_rank`: highest rank of LoRA adapters, 0: there are none. `sinks`: heads have
    sinks."""

    name: str
    fields: dict[str, Any]
    dtype: torch.dtype = torch.bfloat16
    page: int = 16
    fp8: str | None = None
    stored: tuple[str, ...] = ()
    narrow: bool = False
    whole: bool = False
    steady: bool = False
    every: bool = False
    lora_rank: int = 0
    sinks: bool = False


def _heads(base: dict[str, Any], heads: int, kv_heads: int, dim: int, **more: Any) -> dict[str, Any]:
    return base | {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim} | more


_BF16, _FP16, _FP32 = torch.bfloat16, torch.float16, torch.float32
CASES = (
    Case("Qwen3-0.6B", _SMALL, every=True),
    Case("Qwen3-8B", _LARGE),
    Case("Qwen3-8B, deterministic", _LARGE, steady=True),
    Case("Qwen3-8B, e4m3 KV", _LARGE, narrow=True),
    Case("Qwen3-8B, int8 KV", _LARGE, whole=True),
    Case("Qwen3-8B, e4m3 weights", _LARGE, fp8="rows"),
    Case("Qwen3-8B, e4m3 blocks", _LARGE, fp8="blocks"),
    Case("Qwen3-8B, Q4_K_M", _LARGE, stored=("Q4_K", "Q4_K", "Q6_K")),
    Case("Qwen3-8B, Q4_0", _LARGE, stored=("Q4_0",)),
    Case("Qwen3-8B, AWQ", _LARGE, stored=("uint4-g128",)),
    Case("Qwen3-0.6B, old formats", _SMALL, stored=("Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q5_K")),
    Case("Qwen3-0.6B, small formats", _SMALL, _FP16, stored=("Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4")),
    Case(
        "Qwen3-0.6B, formats of tables",
        _SMALL,
        stored=("lut4-iq2", "lut4-iq3xxs", "lut4-iq3s", "lut4-fp4"),
    ),
    Case(
        "Qwen3-0.6B, groups", _SMALL, stored=("int4-g64", "int4-g128", "uint4-g32", "uint4-f32", "uint8-f32")
    ),
    Case("Qwen3-0.6B, Q4_K in fp32", _SMALL, _FP32, stored=("Q4_K", "Q6_K")),
    Case("Qwen3-30B-A3B", _MOE),
    Case("Qwen3-30B-A3B, deterministic", _MOE, steady=True),
    Case("Mistral-7B", _MISTRAL),
    Case("Gemma-2-9B", _GEMMA),
    Case("Qwen2.5-7B", _QWEN2),
    Case("Gemma-2B", _GEMMA1),
    Case("Qwen1.5-MoE-A2.7B", _SHARED),
    Case("GLM-4-9B", _GLM4),
    Case("Hunyuan-4B", _HUNYUAN),
    Case("Ministral-3-8B", _MINISTRAL),
    # The rest: each head size, group, page and type beside each other, with and without a window and softcap.
    Case("64 / 1, fp16", _heads(_MISTRAL, 8, 8, 64), _FP16, 32),
    Case("64 / 2, e4m3 KV", _heads(_SMALL, 16, 8, 64), _BF16, 64, narrow=True),
    Case("64 / 8, window, int8 KV", _heads(_MISTRAL, 16, 2, 64), _FP16, 32, whole=True),
    Case("64 / 8, capped, fp32", _heads(_GEMMA, 16, 2, 64), _FP32, 16),
    Case("128 / 1, capped, e4m3 KV", _heads(_GEMMA, 8, 8, 128), _FP16, 32, narrow=True),
    Case("128 / 2, fp32", _SMALL, _FP32, 64),
    Case("128 / 8, fp16", _heads(_MISTRAL, 32, 4, 128), _FP16, 16),
    Case("256 / 1, fp32", _heads(_MISTRAL, 4, 4, 256), _FP32, 64),
    Case("256 / 2, capped, e4m3 KV", _GEMMA, _BF16, 64, narrow=True),
    Case("256 / 4, capped, int8 KV", _heads(_GEMMA, 4, 1, 256), _BF16, 16, whole=True),
    Case("256 / 8, fp16", _heads(_SMALL, 16, 2, 256), _FP16, 32),
    # Sizes that are filled up to a power of two, and groups that leave rows of a tile empty.
    Case("80 / 3", _heads(_SMALL, 24, 8, 80)),
    Case("96 / 5, fp16", _heads(_MISTRAL, 40, 8, 96), _FP16, 32),
    Case("112 / 6, e4m3 KV", _heads(_SMALL, 48, 8, 112), _BF16, 16, narrow=True),
    Case("112 / 6, int8 KV", _heads(_SMALL, 48, 8, 112), _BF16, 16, whole=True),
    Case("64 / 8, sinks, int8 KV", _heads(_SMALL, 64, 8, 64), _BF16, 32, whole=True, sinks=True),
    Case("192 / 7, capped", _heads(_GEMMA, 28, 4, 192), _BF16, 64),
    # Heads of 512, as in Gemma 4's layers without a window, and sinks, as in gpt-oss.
    Case("512 / 8", _heads(_SMALL, 8, 1, 512)),
    Case("512 / 4, capped, e4m3 KV", _heads(_GEMMA, 16, 4, 512), _FP16, 64, narrow=True),
    Case("512 / 8, int8 KV", _heads(_SMALL, 8, 1, 512), whole=True),
    Case("512 / 2, fp32", _heads(_SMALL, 4, 2, 512), _FP32),
    Case("64 / 8, sinks", _heads(_MISTRAL, 64, 8, 64, sliding_window=128), sinks=True),
    Case("64 / 8, sinks, e4m3 KV", _heads(_SMALL, 64, 8, 64), _BF16, 32, narrow=True, sinks=True),
    Case("64 / 8, sinks, fp32", _heads(_SMALL, 64, 8, 64), _FP32, sinks=True),
    # LoRA adapters: merged matrices of three parts, two and one, over every base.
    Case("Qwen3-0.6B, adapters", _SMALL, every=True, lora_rank=64),
    Case("Qwen3-8B, adapters of rank 256", _LARGE, lora_rank=256),
    Case("Qwen3-8B, e4m3 blocks, adapters", _LARGE, fp8="blocks", lora_rank=16),
    Case("Qwen3-8B, Q4_K_M, adapters", _LARGE, stored=("Q4_K", "Q4_K", "Q6_K"), lora_rank=32),
    Case("Qwen2.5-7B, adapters, fp16", _QWEN2, _FP16, lora_rank=8),
    Case("Gemma-2-9B, adapters", _GEMMA, lora_rank=64),
    Case("Qwen3-0.6B, adapters, fp32", _SMALL, _FP32, lora_rank=128),
    Case("experts, fp16", _MOE, _FP16),
    Case("experts, fp32", _MOE, _FP32),
)


GPT_OSS = _SMALL | {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4,
    "num_hidden_layers": 1, "tie_word_embeddings": False,
}  # fmt: skip
"""gpt-oss-20b, whose experts are tried by themselves: biases, a clamped activation, MXFP4."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention of a model, for launches that only benchmarks make."""

    heads: int
    kv_heads: int
    dim: int
    dtype: torch.dtype = _BF16
    page: int = 16
    narrow: bool = False
    whole: bool = False
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False


_MEASURED = (Heads(16, 8, 128), Heads(32, 8, 128))
"""Those of `benchmarks/gpu/extend.py`: Qwen3-0.6B and 8B."""
SHARED_EXTEND: tuple[tuple[LoopOptions, dict[str, int], tuple[Heads, ...]], ...] = (
    (
        FASTEST, {},
        (
            Heads(32, 8, 128, page=64), Heads(32, 8, 128, page=64, whole=True), Heads(28, 4, 128, _FP16),
            Heads(8, 8, 64, _FP16, 32),
        ),
    ),
    (MASKED, {}, _MEASURED),
    (replace(MASKED, skip_masks=True), {}, _MEASURED),
    (replace(MASKED, skip_masks=True, base2=True), {}, _MEASURED),
    (FASTEST, {"depth": 32}, _MEASURED),
    (FASTEST, {"rows": 64, "warps": 4, "stages": 4}, _MEASURED),
)  # fmt: skip
"""Loops over keys and what differs from the table's row, each with the heads for which it is compiled; see `LOOPS` of
`benchmarks/gpu/extend.py`. Others are launched by steps."""


NARROW_FORMS = tuple((stored, *form) for name, stored in STORED.items() for form in FORMS[name])
"""Of decode attention over KV of 8 bits: its dtype, keys of a tile, whether values are widened before they are multiplied."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What Triton compiles for a launch: the arguments' types, those that are constants, and what else it knows of them.
    `cases`: who launches it."""

    module: str
    kernel: str
    signature: dict[str, str]
    constants: dict[tuple[int, ...], Any]
    attrs: dict[tuple[int, ...], Any]
    options: dict[str, Any]
    cases: list[str] = field(compare=False)

    @property
    def function(self) -> JITFunction[Any]:
        """The kernel."""
        found: JITFunction[Any] = getattr(importlib.import_module(self.module), self.kernel)
        return found

    def constant(self, name: str) -> Any:
        """What an argument is compiled as; None where it is not a constant."""
        return self.constants.get((list(self.signature).index(name),))


class _NoDevice:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Recorder:
    """Takes launches down: `launches` by what makes them differ. `target`: what they would be compiled for."""

    def __init__(self, target: GPUTarget = HOPPER) -> None:
        self.target = target
        self.launches: dict[str, Launch] = {}
        self.case = ""

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within, no launch is compiled or run."""
        knobs = triton.knobs.runtime
        assert not knobs.interpret, "TRITON_INTERPRET is set"
        former, knobs.jit_cache_hook = knobs.jit_cache_hook, self._take
        triton.runtime.driver.set_active(_NoDevice(self.target))
        tuning.forget()
        try:
            yield
        finally:
            knobs.jit_cache_hook = former
            tuning.forget()

    def _take(self, *, key: str, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        """See `knobs.runtime.jit_cache_hook`: True says that it is taken care of."""
        name = f"{fn.module}.{fn.name}"
        options = {
            name: compile[name] for name in ("num_warps", "num_stages", "num_ctas", "enable_fp_fusion")
        }
        made = Launch(
            fn.module, fn.name, compile["signature"], compile["constants"], compile["configs"][0], options, []
        )
        cases = self.launches.setdefault(f"{name} {key}", made).cases
        if self.case not in cases:
            cases.append(self.case)
        return True


def record(cases: tuple[Case, ...] = CASES, target: GPUTarget = HOPPER) -> list[Launch]:
    """All launches of these."""
    recorder = Recorder(target)
    with recorder.recording(), torch.inference_mode():
        for case in cases:
            recorder.case = case.name
            _serve(case)
        for loop, changes, cases_of in SHARED_EXTEND:
            for heads in cases_of:
                recorder.case = f"shared extend, {heads}, {loop}, {changes}"
                _share_keys(heads, loop, changes)
        for stored, tile, widened in NARROW_FORMS:
            recorder.case = f"decode over {stored}, tiles of {tile}, widened {widened}"
            _decode(stored, tile, widened)
        for dtype in (torch.bfloat16, torch.float16):
            recorder.case = f"experts of gpt-oss, {dtype}"
            _mix(dtype)
    return list(recorder.launches.values())


def _serve(case: Case) -> None:
    """The steps of a model, as `LaunchedSteps` has them computed."""
    config = parse_config(case.fields)
    config = with_sinks(config) if case.sinks else config
    plan = None if case.fp8 is None else Fp8Plan(case.fp8 == "blocks", None, True)
    stored = _stored(config, case.stored)
    each_layer = partial(keep, stored=stored) if stored else plan and partial(hold, plan=plan)
    model = Decoder(config, case.dtype, META, fp8=plan, each_layer=each_layer)
    if stored:
        keep_head(model, stored)
    model.kv_dtype = E4M3 if case.narrow else torch.int8 if case.whole else None
    model.prepare(MAX_LEN)
    if case.steady:
        model.be_steady()
    for layer in model.layers:
        if (experts := routed(layer.feed_forward)) is not None:
            experts.stacked = partial(_stacked, experts.experts)  # type: ignore[method-assign]
    attention = TritonAttention(kv_group(model), case.steady)
    attention.rule = piece_rule(kv_group(model), PROCESSORS, case.steady)
    attention.tile_rule = tile_rule(kv_group(model), PROCESSORS, attention.queries_per_tile, case.steady)
    fuse(attention, model)
    runner = ModelRunner(model, attention, PagedKv.of(kv_group(model), 8, case.page))
    blocks = MAX_LEN // case.page
    tables = (DeviceTables(np.zeros((MAX_ROWS, blocks), np.int32), META),)
    pool = torch.empty(MAX_ROWS * MAX_LEN + 1, dtype=torch.int32, device=META)
    sampler = TritonSampler(max(MAX_ROWS, MIXED_TOKENS[-1]), config.vocab_size, META)
    shaping = torch.empty(MAX_ROWS + 1, row_words(config.vocab_size), dtype=torch.int32, device=META)
    results = torch.empty(1, result_words(config.vocab_size), device=META)
    program = DeviceProgram(
        runner, sampler, tables, pool, config.vocab_size, MAX_ROWS * MAX_LEN, shaping, results
    )
    pieces = partial(attention.most_pieces, longest=MAX_LEN)
    shapes = [
        *decode_shapes(MAX_ROWS, pieces),
        *mixed_shapes(
            MAX_ROWS,
            MAX_TOKENS,
            attention.queries_per_tile,
            pieces,
            partial(attention.most_tile_pieces, longest=MAX_LEN),
        ),
        StepShape(MAX_TOKENS, MAX_ROWS, MAX_ROWS, MAX_TOKENS, MAX_ROWS - 1, True, pieces(MAX_ROWS - 1)),
    ]
    if shared := attention.most_tile_pieces(MAX_TOKENS, MAX_LEN):
        shapes.insert(-1, replace(shapes[-1], tile_pieces=shared))
    if case.lora_rank:
        program.adapters = DeviceWeights(model, _LORAS, case.lora_rank, add_lora)
        shapes = [
            *adapted_shapes(shapes, _LORAS),
            replace(shapes[-1], lora_tiles=most_tiles(MAX_TOKENS, _LORAS)),
        ]
    if not case.every:
        # Stored weights have tiles of 16, 32 and 64 rows.
        sizes = {1, 32, 64, MAX_ROWS, MAX_TOKENS} | ({8} if case.stored else set())
        shapes = [shape for shape in shapes if shape.tokens in sizes]
    program.reserve(
        max(map(num_words, shapes)), MAX_ROWS, max(shape.pieces for shape in shapes),
        max(shape.tile_pieces for shape in shapes),
    )  # fmt: skip
    for shape in shapes:
        step = DeviceStep(torch.empty(num_words(shape), dtype=torch.int32, device=META), shape)
        program.forward(step, None, blocks)
        program.sample(step)
        if case.every:  # without a graph, over tables as long as the longest sequence needs
            for longest in (case.page, 3 * case.page, 1000):
                program.forward(step, None, -(-longest // case.page))


def _share_keys(heads: Heads, loop: LoopOptions, changes: dict[str, int]) -> None:
    """One launch of `shared_extend_attention`."""
    kv_dtype = E4M3 if heads.narrow else heads.dtype
    q = torch.empty(64, heads.heads, heads.dim, dtype=heads.dtype, device=META)
    kv, peaks = torch.empty(2, 8, heads.kv_heads, heads.page, heads.dim, dtype=kv_dtype, device=META), None
    if heads.whole:
        layer = torch.empty(2, 8, heads.kv_heads, heads.page * (heads.dim + 4), dtype=torch.int8, device=META)
        kv, peaks = int8_kv.views(layer, heads.page, heads.dim)
    tiles, pieces, items, tables = (
        torch.empty(shape, dtype=torch.int32, device=META) for shape in ((1, 2), (8, 6), (1,), (1, 512))
    )
    workspace = ExtendWorkspace(8, heads.heads, heads.kv_heads, heads.dim, META)
    shared_extend_attention(
        q, kv, torch.empty_like(q), tiles, pieces, items, items, items, tables, heads.dim**-0.5, workspace,
        window=heads.window, softcap=heads.softcap, loop=loop, row=replace(tuned(heads.dim, heads.dtype, kv.dtype), **changes),
        sinks=torch.empty(heads.heads, dtype=heads.dtype, device=META) if heads.sinks else None, peaks=peaks,
    )  # fmt: skip


def _decode(stored: torch.dtype, tile: int, widened: int) -> None:
    """One launch of `decode_attention` over KV of 8 bits, in a form that a GPU run can choose."""
    heads = Heads(16, 8, 128)
    q = torch.empty(4, heads.heads, heads.dim, dtype=heads.dtype, device=META)
    spec = KvSpec(1, heads.heads, heads.kv_heads, heads.dim, heads.dtype, META, 1.0, None, (None,), stored)
    kv, peaks = KvCache(spec, 8, heads.page).parts(0)
    pieces, tables, lengths = (
        torch.empty(shape, dtype=torch.int32, device=META) for shape in ((8, 6), (4, 512), (4,))
    )
    key = "decode_attention", tuning.kind_of(heads.dtype, stored), heads.dim
    with tuning.trying({key: replace(tuning.choose(*key), depth=tile, widened=widened)}):
        decode_attention(
            q, kv, torch.empty_like(q), tables, lengths, 1.0, pieces,
            DecodeWorkspace(8, heads.heads, heads.kv_heads, heads.dim, META), peaks=peaks,
        )  # fmt: skip


def _mix(dtype: torch.dtype) -> None:
    """The experts of a layer of gpt-oss, for few tokens and for many."""
    experts = Experts(parse_config(GPT_OSS), dtype, META)
    experts.keep_on_device("MXFP4")
    experts.stacked_biases = lambda: (  # type: ignore[method-assign]  # on the meta device there are no views
        torch.empty(32, 5760, dtype=dtype, device=META), torch.empty(32, 2880, dtype=dtype, device=META),
    )  # fmt: skip
    fused = triton_experts(experts)
    assert fused is not None
    for tokens in (1, 4, 64, MAX_TOKENS):
        x, logits = (torch.empty(tokens, width, dtype=dtype, device=META) for width in (2880, 32))
        fused.mix(x, logits)


def _stored(config: DecoderConfig, kinds: tuple[str, ...]) -> dict[str, StoredFormat]:
    """Formats of all matrices of linear layers, by their names, each kind in turn."""
    if not kinds:
        return {}
    places = Decoder(config, torch.bfloat16, META).places()
    names = [name for name, place in places.items() if place.linear is not None and name.endswith("weight")]
    return {name: StoredFormat(kinds[i % len(kinds)]) for i, name in enumerate(names)}


def _stacked(experts: list[Mlp]) -> tuple[torch.Tensor, ...]:
    """`Experts.stacked`, which takes weights on the meta device for given up."""
    firsts = (experts[0].gate_up.weight, experts[0].down.weight)
    return tuple(
        w.as_strided((len(experts), *w.shape), (w.numel(), *w.stride())) for w in firsts if w is not None
    )


def functions() -> dict[str, JITFunction[Any]]:
    """Everything in the package that Triton compiles, by module and name."""
    found = {}
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, JITFunction):
                found[f"{value.__module__}.{value.__name__}"] = value
    return found


def reached(launches: list[Launch]) -> set[str]:
    """The names of the kernels that are launched, and of all that they call."""
    seen: set[str] = set()
    queue = [launch.function for launch in launches]
    while queue:
        function = queue.pop()
        name = f"{function.__module__}.{function.__name__}"
        if name not in seen:
            seen.add(name)
            called = (function.__globals__.get(word) for word in function.fn.__code__.co_names)
            queue += [one for one in called if isinstance(one, JITFunction)]
    return seen
