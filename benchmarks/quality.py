"""How exact our numbers are on a CPU: bf16 against transformers, and what `--quantization` costs.

    python -m benchmarks.quality [--model DIR or SHAPE ...] [--pairs 5] [--prompts 8] [--tokens 64]
                                 [--quantization bf16 int8 ...] [--real DIR or NAME ...] [--threads N] [--json FILE]

bf16: transformers' greedy continuation in fp32 is fed to transformers in bf16 and to our executor in bf16. The RMS errors of
both sides' logits against fp32 make a ratio, promised to be at most 1.1; the best token must be fp32's wherever its lead is more
than 4 of our RMS errors. Counted apart are rows with that lead and one spacing of bf16 at the best logit's size, which the
rounding of the logits themselves can take away. A pair is one set of prompts (and of weights, where these are random);
medians are over pairs.

Quantisation: trained models on texts of eight kinds, teacher-forced, beside transformers' fp32 logits: the mean KL divergence
of the next token's distribution, the share of tokens with the same best one, and the largest fp32 lead that another token
took. The models are those of `tools.real_models`, which fetches them where they are not there.

The recorded run: `python -m benchmarks.quality --json benchmarks/results/quality.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks import quality_quantization
from benchmarks.attention import cpu_name
from benchmarks.quality_measures import Pair, bf16_pairs, summary
from benchmarks.quality_models import RANDOM_SHAPES, WAYS, Way, prompts, random_checkpoint
from executors.cgroup import cpu_threads
from executors.tiny import weights_dir
from tools import real_models
from tools.neutral_paths import neutral

TINY = "cohort-tiny"


def trained(model: str) -> Path:
    """The directory of a model of `tools.real_models`, fetched where it is not there, or the one that is named."""
    return real_models.directory(model) if model in real_models.MODELS else Path(model)


async def bf16(model: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Pairs of one model, by way."""
    found: dict[Way, list[Pair]] = {way: [] for way in WAYS}
    for seed in range(asked.pairs):
        with tempfile.TemporaryDirectory() as folder:
            if model in RANDOM_SHAPES:
                path = random_checkpoint(RANDOM_SHAPES[model], Path(folder), seed)
            else:
                path = weights_dir() if model == TINY else trained(model)
            pairs = await bf16_pairs(
                path, prompts(path, asked.prompts, seed), asked.tokens,
                threads=asked.threads, attention=asked.attention,
            )  # fmt: skip
        for way, pair in pairs.items():
            found[way].append(pair)
            print(
                f"  {model} {way} seed {seed}: ratio {pair.ratio:.3f}, {pair.ours.wrong().sum()} wrong best tokens",
                flush=True,
            )
    return {way: summary(pairs) for way, pairs in found.items()}


def bf16_table(results: dict[str, Any]) -> str:
    """Markdown of what `bf16` gave, by model; in parentheses the figures of transformers.

    The last column is the largest fp32 gap, in RMS errors, of a row with another best token.
    """
    lines = [
        "| model | way | our RMS | transformers' | ratio (lowest to highest) | rows | decided | wrong | past rounding | widest |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for model, ways in results.items():
        for way, one in ways.items():
            argmax = " | ".join(
                f"{one['ours'][name]} ({one['transformers'][name]})"
                for name in ("decided", "wrong", "wrong_beyond_rounding")
            )
            widest = f"{one['ours']['widest_wrong']:.1f} ({one['transformers']['widest_wrong']:.1f})"
            lines.append(
                f"| {model} | {way} | {one['our_rms']:.5f} | {one['transformers_rms']:.5f} | {one['ratio']:.3f} "
                f"({one['lowest_ratio']:.3f} to {one['highest_ratio']:.3f}) | {one['rows']} | {argmax} | {widest} |"
            )
    return "\n".join(lines)


def quantization_table(results: dict[str, Any]) -> str:
    """Markdown of what `quality_quantization.report` gave, by model. The flip is the largest fp32 gap of a row with another
    best token."""
    lines = [
        "| model | way | numbers | rows | KL, nats | best as fp32's | widest flip | perplexity (fp32) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model, names in results.items():
        for name, ways in names.items():
            if "problem" in ways:
                lines.append(f"| {model} | | {name} | not measured: {ways['problem']} | | | | |")
                continue
            lines += [
                f"| {model} | {way} | {name} | {one['rows']} | {one['kl']:.5f} | {100 * one['agreement']:.2f}% "
                f"| {one['flipped_gap']:.2f} | {one['perplexity']:.3f} ({one['float32_perplexity']:.3f}) |"
                for way, one in ways.items()
            ]
    return "\n".join(lines)


def about(asked: argparse.Namespace) -> dict[str, Any]:
    """Commit, configuration, and what it ran on."""
    described = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    options = {name: value for name, value in vars(asked).items() if name != "json"}
    return {
        "commit": described.stdout.strip() or "unknown", "config": options, "cpu": cpu_name(), "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__,
        "transformers": transformers.__version__, "load_before": os.getloadavg()[0],
    }  # fmt: skip


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", nargs="*", default=[TINY, "mini"],
        help=f"checkpoint directories, {TINY}, {', '.join(real_models.MODELS)}, or random weights of a shape: "
        f"{', '.join(RANDOM_SHAPES)}",
    )  # fmt: skip
    parser.add_argument("--pairs", type=int, default=5, help="sets of prompts")
    parser.add_argument("--prompts", type=int, default=8, help="per pair")
    parser.add_argument("--tokens", type=int, default=64, help="of greedy continuation per prompt")
    parser.add_argument(
        "--attention", choices=("sdpa", "eager"), default="sdpa", help="of transformers in bf16"
    )
    parser.add_argument(
        "--quantization", nargs="*", default=["bf16", "int8"], choices=quality_quantization.CHANGES,
        help="what to compare with fp32; without a value nothing",
    )  # fmt: skip
    parser.add_argument(
        "--real", nargs="*", default=list(real_models.MODELS), metavar="DIR or NAME",
        help=f"trained models for --quantization: checkpoint directories or {', '.join(real_models.MODELS)}",
    )  # fmt: skip
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure, print tables, and write everything."""
    asked = parse()
    torch.set_num_threads(asked.threads or cpu_threads())
    results = about(asked)
    results["bf16"] = {model: asyncio.run(bf16(model, asked)) for model in asked.model}
    if asked.model:
        print(f"\n{bf16_table(results['bf16'])}\n", flush=True)
    results["quantization"] = {
        model: asyncio.run(quality_quantization.report(trained(model), asked.quantization, asked.threads))
        for model in asked.real
    }
    print(quantization_table(results["quantization"]))
    if asked.json:
        asked.json.write_text(json.dumps(neutral(results), indent=1) + "\n")


if __name__ == "__main__":
    main()
