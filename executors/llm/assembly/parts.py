"""Chooses the `UnifiedRunner` of a device and its sampler."""

from __future__ import annotations

import logging

import torch

from executors.contract.config import ExecutorConfig
from executors.kernels import triton_build
from executors.llm.memory import sizing
from executors.llm.model.api import LoadedModel
from executors.llm.model.caches import kv_group
from executors.llm.sampling.device_sampler import DeviceSampler, TorchDeviceSampler
from executors.llm.sampling.grammar import GrammarCompiler
from executors.llm.sampling.shaped_slots import TABLE_BYTES
from executors.llm.step.launched.graphs import MIXED_TOKENS, CudaDevice, StepDevice, affordable
from executors.llm.step.launched.inputs import StepShape
from executors.llm.step.launched.steps import DeviceUnifiedRunner
from executors.llm.step.pipeline import UnifiedRunner
from executors.llm.step.runner import ModelRunner

_log = logging.getLogger(__name__)


def step_device(device: torch.device) -> StepDevice | None:
    """Return the device that steps run on; None for a CPU, where the host computes them itself."""
    return CudaDevice(device) if device.type == "cuda" else None


def unified_runner(
    runner: ModelRunner, source: LoadedModel, config: ExecutorConfig, max_model_len: int, compiler: GrammarCompiler,
    device: StepDevice | None,
) -> UnifiedRunner:  # fmt: skip
    """Make the runner for steps within the limits of `config`. Raises ConfigError if the host has no memory for tables of its
    slots."""
    slots, rows, width = sizing.num_slots(config), config.max_num_seqs, compiler.width
    try:
        if device is None or not runner.takes_packed:
            return UnifiedRunner(runner, slots, rows, max_model_len, compiler)
        sampler = device_sampler(
            runner.device, max(rows, MIXED_TOKENS[0]), width, kv_group(runner.model).dtype
        )  # fmt: skip
        made = DeviceUnifiedRunner(
            runner, slots, rows, max_model_len, compiler, device, sampler,
            max_tokens=config.max_num_batched_tokens, eager=config.optimization.enforce_eager,
            shaping=_shaping_bytes(runner.device), max_adapters=config.optimization.max_loras,
        )  # fmt: skip
    except MemoryError:  # a limit on address space
        raise sizing.slots_do_not_fit(config, max_model_len) from None
    if made.graphs is not None:
        # Logits in float32 beside what a forward takes, unless they go where they stay.
        logits = 0 if getattr(runner.model, "writes_logits", False) else 4 * width

        def num_bytes(shape: StepShape) -> int:
            return shape.tokens * source.activation_bytes_per_token + shape.samples * logits

        made.graphs.shapes = affordable(made.graphs.shapes, num_bytes, _graph_share(runner.device))
        # The largest take it all; others are cut from the same memory.
        made.reserve(max(map(num_bytes, made.graphs.shapes)))
    return made


def _graph_share(device: torch.device) -> int:
    """Bytes that graphs of many tokens may reserve: 1/32 of the device."""
    if device.type != "cuda":
        return 1 << 62
    total: int = torch.cuda.mem_get_info(device)[1]
    return total // 32


def _shaping_bytes(device: torch.device) -> int:
    """Bytes of the table that shapes logits; smaller on a small device."""
    if device.type != "cuda":
        return TABLE_BYTES
    total: int = torch.cuda.mem_get_info(device)[1]
    return min(TABLE_BYTES, total // 64)


def device_sampler(device: torch.device, max_rows: int, width: int, dtype: torch.dtype) -> DeviceSampler:
    """Return Cohort's kernels if Triton is available and they pass their check, else torch calls. `dtype`: that of the
    logits."""
    if device.type == "cuda":
        try:
            if (lacking := triton_build.missing()) is not None:
                raise ImportError(lacking)
            from executors.llm.kernel_support.kernel_check import sampler_fault
            from executors.llm.sampling.triton_sampler import TritonSampler

            made = TritonSampler(max_rows, width, device)
            if (wrong := sampler_fault(made, max_rows, width, dtype, device)) is not None:
                raise ValueError(wrong)
            return made
        except (ImportError, ValueError) as error:
            _log.warning("sampling: torch, which is slower than Cohort's Triton kernels: %s", error)
    return TorchDeviceSampler()
