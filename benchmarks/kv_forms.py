"""What forms of keys and values cost on trained models: transformers in float32, whose keys and values are rounded to a form and
widened again before attention. Nothing else is rounded, so that a figure is the form's alone.

    python -m benchmarks.kv_forms [--real DIR or NAME ...] [--forms NAME ...] [--texts 8] [--layers] [--json FILE]

The texts are those of `benchmarks.quality`, the figure the mean KL divergence from the same model without rounding, in nats.
`--layers`: e4m3 of a sixth of the layers at a time as well. For each model the peak of a head's numbers is told in units of their
root mean square: int8 with a scale per head and token rounds to 1 / 254 of the peak at most, e4m3 to 1 / 16 of each number.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from benchmarks.attention import cpu_name
from benchmarks.quality_measures import compare
from benchmarks.quality_models import forced_texts
from executors.cgroup import cpu_threads
from executors.llm.model.hadamard import Hadamard
from tools import real_models
from tools.neutral_paths import neutral

Form = Callable[[torch.Tensor], torch.Tensor]
"""Rounds keys or values float32 [1, kv_heads, tokens, head_dim]."""
_E4M3, _LARGEST = torch.float8_e4m3fn, 448.0
_LEAST = 1e-20


def same(x: torch.Tensor) -> torch.Tensor:
    """No rounding."""
    return x


def bf16(x: torch.Tensor) -> torch.Tensor:
    """bfloat16."""
    return x.bfloat16().float()


def e4m3(*shared: int) -> Form:
    """e4m3; the largest number over the dimensions `shared` becomes 448, without any there is no scale."""

    def rounded(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(shared, keepdim=True).clamp_min(_LEAST) / _LARGEST if shared else 1.0
        return (x / scale).clamp(-_LARGEST, _LARGEST).to(_E4M3).float() * scale

    return rounded


def int8(group: int = 0) -> Form:
    """int8, with a scale per head and token, or for each `group` numbers of one."""

    def rounded(x: torch.Tensor) -> torch.Tensor:
        parts = x.unflatten(-1, (-1, group or x.shape[-1]))
        scale = parts.abs().amax(-1, keepdim=True).clamp_min(_LEAST) / 127
        return ((parts / scale).round() * scale).flatten(-2)

    return rounded


def turned(form: Form) -> Form:
    """The form of numbers that a Hadamard matrix has turned, in blocks of the largest power of two that divides a head."""

    def rounded(x: torch.Tensor) -> torch.Tensor:
        size = x.shape[-1]
        turn = Hadamard(size & -size, x.device)
        return turn(form(turn(x.reshape(-1, size)).view(x.shape)).reshape(-1, size)).view(x.shape)

    return rounded


FORMS: dict[str, tuple[Form, Form]] = {
    "bf16": (bf16, bf16),
    "e4m3": (e4m3(), e4m3()),
    "e4m3, keys alone": (e4m3(), same),
    "e4m3, values alone": (same, e4m3()),
    "e4m3, a scale per head": (e4m3(0, 2, 3), e4m3(0, 2, 3)),
    "e4m3, a scale per head and token": (e4m3(3), e4m3(3)),
    "e4m3, a scale per channel": (e4m3(0, 2), e4m3(0, 2)),
    "int8, a scale per head and token": (int8(), int8()),
    "int8, keys alone": (int8(), same),
    "int8, values alone": (same, int8()),
    "int8, a scale per 64": (int8(64), int8(64)),
    "int8, a scale per 32": (int8(32), int8(32)),
    "int8, keys turned": (turned(int8()), int8()),
    "int8, keys turned, alone": (turned(int8()), same),
    "int8, keys and values turned": (turned(int8()), turned(int8())),
    "int8 keys, e4m3 values": (int8(), e4m3(3)),
}  # fmt: skip
"""Forms of keys and of values. Keys are rounded after rotation, as a cache has them."""


class Rounding:
    """transformers' attention behind a form, which `form` chooses by layer."""

    def __init__(self, directory: Path, texts: int) -> None:
        self.form: Callable[[int, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None = (
            None
        )
        transformers.AttentionInterface.register("rounded", self._attend)
        transformers.AttentionMaskInterface.register("rounded", sdpa_mask)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="rounded", local_files_only=True
        ).eval()
        self.texts = forced_texts(directory)[:texts]

    def _attend(
        self, module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, **more: Any
    ) -> Any:
        if self.form is not None:
            k, v = self.form(module.layer_idx, k, v)
        return sdpa_attention_forward(module, q, k, v, mask, **more)

    @torch.inference_mode()
    def logits(self) -> list[Any]:
        """float32 [rows, V] of each text."""
        return [
            self.model(torch.tensor([one.read]), use_cache=False)
            .logits[0, torch.from_numpy(one.rows)]
            .numpy()
            for one in self.texts
        ]

    def peaks(self) -> dict[str, float]:
        """The mean of the largest magnitude of a token's head by the root mean square of its numbers, and the largest one of a
        layer's means, of keys and of values."""
        found: dict[str, list[float]] = {"keys": [], "values": []}

        def look(layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            for name, x in (("keys", k), ("values", v)):
                found[name].append(float((x.abs().amax(-1) / x.square().mean(-1).sqrt()).mean()))
            return k, v

        self.form = look
        with torch.inference_mode():
            self.model(torch.tensor([self.texts[0].read]), use_cache=False)
        self.form = None
        return {
            f"{how} peak of {name}": how_of(each)
            for name, each in found.items()
            for how, how_of in (("mean", lambda one: sum(one) / len(one)), ("largest", max))
        }


def report(directory: Path, names: Sequence[str], by_layers: bool, texts: int) -> dict[str, Any]:
    """KL, and the share of tokens whose best is the same, by form."""
    rounding = Rounding(directory, texts)
    found: dict[str, Any] = {"peaks": rounding.peaks(), "rows": sum(len(one.rows) for one in rounding.texts)}
    print(f"  {directory.name}: {found['peaks']}", flush=True)
    exact = rounding.logits()

    def put(
        name: str, form: Callable[[int, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    ) -> None:
        rounding.form = form
        compared = compare(rounding.logits(), exact, [one.targets for one in rounding.texts])
        found[name] = {"kl": float(compared.kl.mean()), "agreement": compared.agreement}
        print(
            f"  {directory.name} {name}: KL {found[name]['kl']:.5f}, {100 * compared.agreement:.1f}%",
            flush=True,
        )

    for name in names:
        keys, values = FORMS[name]
        put(name, lambda layer, k, v, keys=keys, values=values: (keys(k), values(v)))  # type: ignore[misc]
    if by_layers:
        layers, form = rounding.model.config.num_hidden_layers, e4m3()
        step = max(1, layers // 6)
        for first in range(0, layers, step):
            part = range(first, min(first + step, layers))
            put(
                f"e4m3, layers {part.start} to {part.stop - 1}",
                lambda layer, k, v, part=part: (form(k), form(v)) if layer in part else (k, v),  # type: ignore[misc]
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", nargs="*", default=list(real_models.MODELS), metavar="DIR or NAME")
    parser.add_argument("--forms", nargs="*", default=list(FORMS), choices=FORMS, metavar="NAME")
    parser.add_argument("--texts", type=int, default=8, help="how many of the texts, the first ones")
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads or cpu_threads())
    results: dict[str, Any] = {
        "cpu": cpu_name(), "torch": torch.__version__, "transformers": transformers.__version__,
        "load_before": os.getloadavg()[0],
    }  # fmt: skip
    for model in options.real:
        directory = real_models.directory(model) if model in real_models.MODELS else Path(model)
        results[model] = report(directory, options.forms, options.layers, options.texts)
    if options.json:
        options.json.write_text(json.dumps(neutral(results), indent=1) + "\n")


if __name__ == "__main__":
    main()
