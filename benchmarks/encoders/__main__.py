"""Cohort's /v1/embeddings under load beside other libraries that compute the same texts within one process.

    python -m benchmarks.encoders MODEL                       MODEL: a folder with a BERT that takes the mean of a text
    python -m benchmarks.encoders MODEL --rounds 1 --seconds 10 --peers openvino
    python -m benchmarks.encoders MODEL --texts 64 --peers openvino --form weights_int8 --batches 4,8    on a slow machine

In each round Cohort is started, and 64 clients send texts of 10 to 400 tokens, one a call, with another client beside them that
sends a short one now and then; then one call has 64 texts of 20 tokens. Then each peer computes the same texts, with tokenizing,
in each of its forms and batch sizes. Figures are texts a second, medians of rounds; the ratio is to the best form of all peers.
Vectors of both sides are compared with transformers in float32. Results go to a JSON file with commit and machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoders import install
from benchmarks.encoders.texts import LONGEST, texts
from benchmarks.peers import machine, tree
from benchmarks.peers.servers import MODEL_NAME, Side, serving

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 64
TEXTS_OF_CALL = 64
_CALLS = 10
"""Of TEXTS_OF_CALL texts, of which the median counts."""
PEERS = ("torch", "onnxruntime", "openvino")


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(prog="benchmarks.encoders", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--batches", default="1,4,8,16,32", help="of peers")
    parser.add_argument("--form", default="", help="of peers: only forms with this in their names")
    parser.add_argument("--flags", default="--quantization int8", help="of cohort serve")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    peers = [one for one in asked.peers.split(",") if one]
    if unknown := set(peers) - set(PEERS):
        parser.error(f"--peers: {sorted(unknown)[0]} is not one of {', '.join(PEERS)}")
    python = install.ensure() if peers else Path(sys.executable)
    folder = install.folder() / "models" / asked.model.resolve().parent.name
    if set(peers) - {"torch"} and not (folder / "exported").exists():
        _run([str(python), "-m", "benchmarks.encoders.export", str(asked.model), str(folder)])
    here, rounds = machine.this(), []
    print(here.words, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        own = Path(scratch)
        given = texts(asked.model, asked.texts)
        (own / "texts.json").write_text(json.dumps(given))
        np.save(own / "reference.npy", _reference(asked.model, given))
        for number in range(asked.rounds):
            figures = {"cohort": _served(asked, own, given)}
            print(f"round {number + 1}: {json.dumps(figures['cohort'])}", flush=True)
            for peer in peers:
                figures[peer] = _in_process(python, peer, asked, folder, own)
                print(f"round {number + 1}: {peer}: {json.dumps(_best(figures[peer]))}", flush=True)
            rounds.append(figures)
    report = {
        "commit": tree.state().commit, "changed": tree.state().changed, "machine": here.facts(),
        "flags": asked.flags, "summary": _summary(rounds, peers), "rounds": rounds,
    }  # fmt: skip
    print(json.dumps(report["summary"], indent=1))
    target = asked.json or ROOT / f"benchmarks/results/encoders-{here.name}.json"
    target.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {target}")


def _summary(rounds: list[dict[str, Any]], peers: list[str]) -> dict[str, Any]:
    ours = [one["cohort"] for one in rounds]
    found: dict[str, Any] = {
        name: statistics.median(one[name] for one in ours)
        for name in ("texts_s", "short_p99_ms", "step_ms", "short_p99_steps", "call_of_64_ms", "cosine")
    }
    rates = {peer: statistics.median(_best(one[peer])["texts_s"] for one in rounds) for peer in peers}
    found["peers"] = rates
    if rates:
        found["ratio"] = found["texts_s"] / max(rates.values())
    return found


def _best(lines: list[dict[str, Any]]) -> dict[str, Any]:
    return max(lines, key=lambda line: float(line["texts_s"]))


def _served(asked: argparse.Namespace, own: Path, given: list[str]) -> dict[str, Any]:
    command = [
        sys.executable, "-m", "server.cli", "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}",
        "--served-model-name", MODEL_NAME, "--max-model-len", str(LONGEST), "--log-level", "warning", *asked.flags.split(),
    ]  # fmt: skip
    with serving(Side("cohort", command, "/ready"), asked.model, own / "cohort.log") as (url, _):
        cosine = _compared(url, given, np.load(own / "reference.npy"))
        _load(url, own, min(3.0, asked.seconds))
        before = _steps(url)
        report = _load(url, own, asked.seconds, "--beside")
        steps = _steps(url) - before
        short = texts(asked.model, TEXTS_OF_CALL, (20, 20), seed=3)
        calls = []
        for _ in range(_CALLS + 1):
            began = time.perf_counter()
            _embed(url, short)
            calls.append(1000 * (time.perf_counter() - began))
    if report["errors"]:
        raise SystemExit(f"benchmarks.encoders: {report['errors']} calls failed")
    step_ms = 1000 * report["seconds"] / max(1.0, steps)
    p99 = float(np.percentile(report["short_ms"], 99)) if report["short_ms"] else 0.0
    return {
        "texts_s": report["calls"] / report["seconds"], "step_ms": step_ms, "short_p99_ms": p99,
        "short_p99_steps": p99 / step_ms, "short_calls": len(report["short_ms"]),
        "call_of_64_ms": statistics.median(calls[1:]), "cosine": cosine,
    }  # fmt: skip


def _load(url: str, own: Path, seconds: float, *flags: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.encoders.clients", url, str(own / "texts.json")]
    report: dict[str, Any] = json.loads(_run([*command, str(CLIENTS), str(seconds), *flags]))
    return report


def _in_process(
    python: Path, peer: str, asked: argparse.Namespace, folder: Path, own: Path
) -> list[dict[str, Any]]:
    files = [str(own / "texts.json"), str(own / "reference.npy")]
    command = [str(python), "-m", "benchmarks.encoders.peers", peer, str(asked.model), str(folder), *files]
    lines = _run([*command, asked.batches, asked.form])
    figures = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    if not figures:
        raise SystemExit(f"benchmarks.encoders: {peer} has no form with {asked.form!r} in its name")
    return figures


def _run(command: list[str]) -> str:
    """What a command prints. Raises SystemExit with the end of what it says where it fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"benchmarks.encoders: {' '.join(command[:4])} failed: {done.stderr[-2000:]}")
    return done.stdout


def _embed(url: str, given: list[str]) -> np.ndarray:
    """float32 [texts, hidden] of one call."""
    body = json.dumps({"model": MODEL_NAME, "input": given}).encode()
    request = urllib.request.Request(f"{url}/v1/embeddings", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return np.array([one["embedding"] for one in json.load(answer)["data"]], np.float32)


def _compared(url: str, given: list[str], reference: np.ndarray) -> float:
    return float((_embed(url, given) * reference).sum(1).min())


def _steps(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("cohort_steps_total"))


def _reference(model: Path, given: list[str]) -> np.ndarray:
    """float32 [texts, hidden] of length 1, by transformers in float32."""
    import torch
    import transformers

    from benchmarks.encoders.texts import tokenizer

    bert = transformers.BertModel.from_pretrained(model, add_pooling_layer=False).eval()
    rows = []
    for one in tokenizer(model).encode_batch(given):
        with torch.inference_mode():
            rows.append(bert(torch.tensor([one.ids])).last_hidden_state[0].double().mean(0).numpy())
    found = np.array(rows)
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float32)


if __name__ == "__main__":
    main()
