"""Families of encoders behind the HTTP server, from safetensors and from GGUF files: the vectors of transformers, and the truth
in `cohort info` and /v1/models."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer

from tests.e2e.server_process import ServerProcess
from tests.e2e.test_encoders import SPECIAL, WORDS, vectors, write
from tests.engine.text.gguf_conversion import convert
from tests.executors.llm.encoder import test_encoders
from tests.executors.llm.encoder.gguf_encoders import write_encoder
from tests.executors.llm.encoder.rotary_models import made

_SIZE = len(SPECIAL) + len(WORDS) + 10
POOLINGS = {"bert": "cls", "modernbert": "cls", "nomic_bert": "mean", "gemma3_text": "mean"}
"""The pooling that the files of each family name here."""
CASES = [
    ("modernbert", "safetensors"),
    ("nomic_bert", "safetensors"),
    ("gemma3_text", "safetensors"),
    ("bert", "gguf"),
    ("gemma3_text", "gguf"),
    pytest.param(("modernbert", "gguf"), marks=pytest.mark.long(extended=True)),
    pytest.param(("nomic_bert", "gguf"), marks=pytest.mark.long(extended=True)),
]


@dataclass(frozen=True)
class Served:
    """A server, what it was started with, and the directory of the same model for transformers."""

    server: ServerProcess
    path: Path
    directory: Path
    family: str
    form: str


def written(folder: Path, family: str) -> None:
    """A random model of that family with a WordPiece tokenizer, and the modules of sentence-transformers."""
    write(folder)
    if family == "bert":
        test_encoders.made(folder, family, vocab_size=_SIZE, max_position_embeddings=320)
    else:
        made(folder, family, vocab_size=_SIZE)
    pooling = {
        "pooling_mode_cls_token": POOLINGS[family] == "cls",
        "pooling_mode_mean_tokens": POOLINGS[family] == "mean",
    }
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))


def gguf_of(path: Path, folder: Path, family: str) -> Path:
    """The directory's model and tokenizer as a GGUF file."""
    config = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "cls", "sep", "pad", "mask")}
    read = convert(json.loads((folder / "tokenizer.json").read_text()), config, "default")
    tokenizer = {
        name.replace(".", "__"): value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in read.items()
        if name.startswith("tokenizer.")
    }
    return write_encoder(path, folder, **tokenizer, pooling_type=1 if POOLINGS[family] == "mean" else 2)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    family, form = request.param
    folder = tmp_path_factory.mktemp(family)
    written(folder, family)
    path = (
        folder
        if form == "safetensors"
        else gguf_of(tmp_path_factory.mktemp("gguf") / "m.gguf", folder, family)
    )
    arguments = [
        str(path),
        "--served-model-name",
        "it",
        "--max-num-batched-tokens",
        "64",
        "--dtype",
        "float32",
    ]
    with ServerProcess(arguments, tmp_path_factory.mktemp("server")) as server:
        yield Served(server, path, folder, family, form)


def texts() -> list[str]:
    """Of 1 to 300 words: up to far beyond the local layers' window, and longer than a step is meant to be."""
    rng = random.Random(4)
    return [" ".join(rng.choices(WORDS, k=count)) for count in (1, 3, 14, 15, 16, 40, 120, 300)]


def expected(served: Served, asked: list[str]) -> np.ndarray:
    """float32 [texts, hidden] of length 1."""
    tokenizer = Tokenizer.from_file(str(served.directory / "tokenizer.json"))
    reference = transformers.AutoModel.from_pretrained(served.directory).eval()
    rows = []
    for text in asked:
        with torch.no_grad():
            hidden = (
                reference(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0].double().numpy()
            )
        row = hidden[0] if POOLINGS[served.family] == "cls" else hidden.mean(0)
        rows.append(row / np.linalg.norm(row))
    return np.array(rows)


def test_vectors_are_those_of_transformers(served: Served) -> None:
    answer = served.server.post("/v1/embeddings", {"model": "it", "input": texts()})
    np.testing.assert_allclose(vectors(answer), expected(served, texts()), atol=1e-5)


def test_what_is_told_of_the_model_is_true(served: Served) -> None:
    card = served.server.get("/v1/models").json()["data"][0]
    assert card["generates"] is False and card["max_model_len"] == 320
    chat = {"model": "it", "messages": [{"role": "user", "content": "hi"}]}
    refused = served.server.post("/v1/chat/completions", chat)
    assert refused.status_code == 400 and "embeddings" in refused.json()["error"]["message"]
    command = [str(Path(sys.executable).with_name("cohort")), "info", str(served.path)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "embeddings only: an encoder" in told and "320" in told, told
