"""The same workload by transformers' continuous batching, on the same machine in the same run."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import torch

from benchmarks.gpu import shapes
from benchmarks.gpu.engine import workload
from benchmarks.gpu.part import Found, NotRun, Options
from benchmarks.gpu.serving import TEMPERATURE

_SILENCE = 150.0
"""Seconds without a finished sequence after which no more is waited for."""
_LONGEST = 330.0
"""Seconds of the counted round: the part ends by itself, and says how far it came."""


def run(options: Options, found: Found) -> None:
    """Output tokens a second, of one round: it takes a while. Raises NotRun for whatever goes wrong: nothing of that is ours."""
    if importlib.util.find_spec("transformers") is None:
        raise NotRun("transformers is not installed")
    import transformers

    if not hasattr(transformers.GenerationMixin, "continuous_batching_context_manager"):
        raise NotRun(f"transformers {transformers.__version__} has no continuous batching")
    found({"transformers": transformers.__version__})
    work = workload(options.tiny)
    model = random_model(shapes.TINY if options.tiny else shapes.SMALL, torch.device(options.device))
    config = transformers.GenerationConfig(
        do_sample=True, temperature=TEMPERATURE, top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=0,
        max_new_tokens=max(work.outputs),
    )  # fmt: skip
    # It sizes itself from the device's memory, which on a CPU takes a minute.
    sizes = {"num_blocks": 64, "max_batch_tokens": 128}
    given = (
        {"continuous_batching_config": transformers.ContinuousBatchingConfig(**sizes)} if options.tiny else {}
    )
    seconds: list[float] = []
    try:
        batching = model.continuous_batching_context_manager(config, timeout=5.0, **given)
        with batching as manager:
            found({"attention": model.config._attn_implementation})  # the manager may have chosen another
            # Its graphs are captured before; a few short sequences have what is left compiled.
            for number, one in enumerate((shapes.offline(32, 16, 64, 200), work)):
                seconds.append(one_round(manager, one, number, found))
                found({"seconds": seconds})
    except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        said = (str(error).splitlines() or [""])[0]
        raise NotRun(f"transformers failed: {type(error).__name__}: {said}") from error
    found({"output_tokens_per_s": work.output_tokens / seconds[-1]})


def random_model(shape: str, device: torch.device) -> Any:
    """transformers' model of the shape, its weights random and on the device from the start."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    fields = {name: value for name, value in shapes.SHAPES[shape].items() if name != "torch_dtype"}
    dtype = getattr(torch, shapes.SHAPES[shape]["torch_dtype"])
    with device:
        return AutoModelForCausalLM.from_config(Qwen3Config(**fields), dtype=dtype).eval()


def one_round(manager: Any, work: shapes.Workload, number: int, found: Found) -> float:
    """Seconds from the first request to the last token; how many have ended is told meanwhile.

    Raises NotRun where somebody is given another number of tokens, or it takes too long: a rate of those that have ended would be
    too low, since others were under way.
    """
    began = time.perf_counter()
    asked = {}
    for key, (prompt, count) in enumerate(zip(work.prompts, work.outputs, strict=True)):
        name = f"{number}-{key}"
        manager.add_request(prompt, request_id=name, max_new_tokens=count)
        asked[name] = count
    while asked:
        left = began + _LONGEST - time.perf_counter()
        result = manager.get_result(timeout=min(_SILENCE, left)) if left > 0 else None
        if result is None:
            raise NotRun(f"transformers had {len(asked)} of {len(work.prompts)} sequences not finished after "
                         f"{time.perf_counter() - began:.0f} s")  # fmt: skip
        if result.error is not None:
            raise NotRun(f"transformers: {result.error}")
        if result.is_finished():
            count = asked.pop(result.request_id)
            if len(result.generated_tokens) != count:
                raise NotRun(f"transformers gave {len(result.generated_tokens)} tokens for {count}")
            ended = {f"ended_in_round_{number}": len(work.prompts) - len(asked)}
            found(ended | {f"seconds_of_round_{number}": time.perf_counter() - began})
    return time.perf_counter() - began
