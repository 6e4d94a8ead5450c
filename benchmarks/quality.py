"""How exact our numbers are on a CPU: bf16 against transformers, and what `--quantization` costs.

    python -m benchmarks.quality [--model DIR or SHAPE ...] [--pairs 5] [--prompts 8] [--tokens 64]
                                 [--quantization int8 ...] [--conversations 4] [--skills N] [--threads N] [--json FILE]

bf16: transformers' greedy continuation in fp32 is fed to transformers in bf16 and to our executor in bf16. The RMS errors of
both sides' logits against fp32 make a ratio, promised to be at most 1.1; the best token must be fp32's wherever its lead is more
than 4 of our RMS errors. Counted apart are rows with that lead and one spacing of bf16 at the best logit's size, which the
rounding of the logits themselves can take away. A pair is one set of prompts (and of weights, where these are random);
medians are over pairs.

Quantisation: held-out conversations of cohort-tiny, teacher-forced: RMS error and argmax agreement beside fp32 and our bf16,
perplexity of the assistant's tokens; with --skills N the skill table over HTTP, N prompts a row.

The recorded run: `python -m benchmarks.quality --skills 200 --json benchmarks/results/quality.json`.
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
from executors.llm.memory import cpu_threads
from executors.tiny import weights_dir

TINY = "cohort-tiny"


async def bf16(model: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Pairs of one model, by way."""
    found: dict[Way, list[Pair]] = {way: [] for way in WAYS}
    for seed in range(asked.pairs):
        with tempfile.TemporaryDirectory() as folder:
            if model in RANDOM_SHAPES:
                directory = random_checkpoint(RANDOM_SHAPES[model], Path(folder), seed)
            else:
                directory = weights_dir() if model == TINY else Path(model)
            pairs = await bf16_pairs(
                directory, prompts(directory, asked.prompts, seed), asked.tokens,
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


def quantization_table(name: str, result: dict[str, Any]) -> str:
    """Markdown of what `quality_quantization.text` gave."""
    if "problem" in result:
        return f"{name}: not measured: {result['problem']}"
    lines = [
        "| way | weights | RMS beside fp32 | beside bf16 | argmax as fp32 | as bf16 | KL, nats | perplexity |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for way, one in result.items():
        lines += [
            f"| {way} | fp32 | | | | | | {one['fp32_perplexity']:.4f} |",
            f"| {way} | bf16 | {one['bf16_rms']:.4f} | | {100 * one['bf16_agreement']:.2f}% | | {one['bf16_kl']:.2e} "
            f"| {one['bf16_perplexity']:.4f} |",
            f"| {way} | {name} | {one['rms']:.4f} | {one['rms_beside_bf16']:.4f} | {100 * one['agreement']:.2f}% "
            f"| {100 * one['agreement_with_bf16']:.2f}% | {one['kl']:.2e} | {one['perplexity']:.4f} |",
        ]
    return "\n".join(lines)


def skills_table(name: str, result: dict[str, Any]) -> str:
    """Markdown of what `quality_quantization.skills` gave."""
    if "problem" in result:
        return f"{name}: skills not measured: {result['problem']}"
    lines = [f"| skill | bf16 % | {name} % |", "|---|---|---|"]
    lines += [
        f"| {skill} | {100 * row['bf16']:.1f} | {100 * row[name]:.1f} |"
        for skill, row in result["rows"].items()
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
        help=f"checkpoint directories, {TINY}, or random weights of a shape: {', '.join(RANDOM_SHAPES)}",
    )  # fmt: skip
    parser.add_argument("--pairs", type=int, default=5, help="sets of prompts")
    parser.add_argument("--prompts", type=int, default=8, help="per pair")
    parser.add_argument("--tokens", type=int, default=64, help="of greedy continuation per prompt")
    parser.add_argument(
        "--attention", choices=("sdpa", "eager"), default="sdpa", help="of transformers in bf16"
    )
    parser.add_argument(
        "--quantization", nargs="*", default=["int8"], choices=quality_quantization.CHANGES,
        help="what to compare with bf16; without a value nothing",
    )  # fmt: skip
    parser.add_argument("--conversations", type=int, default=4, help="per skill and pair, for perplexity")
    parser.add_argument("--skills", type=int, default=0, help="prompts a row of the skill table; 0: no table")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure, print tables, and write everything."""
    asked = parse()
    torch.set_num_threads(asked.threads or cpu_threads())
    results = about(asked)
    results["bf16"] = {model: asyncio.run(bf16(model, asked)) for model in asked.model}
    print(f"\n{bf16_table(results['bf16'])}\n", flush=True)
    for name in asked.quantization:
        results[name] = asyncio.run(
            quality_quantization.text(weights_dir(), name, asked.pairs, asked.conversations, asked.threads)
        )
        print(f"{quantization_table(name, results[name])}\n", flush=True)
        if asked.skills:
            found = quality_quantization.skills(None, name, asked.skills)
            results.setdefault("skills", {})[name] = found
            print(skills_table(name, found))
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
