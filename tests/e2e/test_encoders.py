"""An encoder behind the HTTP server: vectors of transformers, also while its process is killed, and clear refusals."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.e2e.server_process import ServerProcess

WORDS = [f"w{number}" for number in range(60)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write(folder: Path) -> None:
    """A random BERT that pools its first token, as bge does, with a WordPiece tokenizer."""
    names = [*SPECIAL, *WORDS, *[f"##{letter}" for letter in "abcdefghij"]]
    config = transformers.BertConfig(
        vocab_size=len(names), hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96,
        max_position_embeddings=128, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(3)
    transformers.BertModel(config).save_pretrained(folder)
    made = Tokenizer(models.WordPiece({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        "[CLS] $0 [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.add_special_tokens(SPECIAL)
    made.save(str(folder / "tokenizer.json"))
    steps = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    (folder / "modules.json").write_text(
        json.dumps([{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in steps])
    )
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    write(folder)
    return folder


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    arguments = [
        str(model),
        "--served-model-name",
        "bert",
        "--max-num-batched-tokens",
        "64",
        "--max-num-seqs",
        "16",
    ]
    with ServerProcess(arguments, tmp_path_factory.mktemp("server")) as started:
        yield started


def texts(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(1, 100))) for _ in range(count)]


def expected(model: Path, asked: list[str], pooling: str = "cls") -> np.ndarray:
    """float32 [texts, hidden] of length 1."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    reference = transformers.BertModel.from_pretrained(model).eval()
    rows = []
    for text in asked:
        with torch.no_grad():
            hidden = (
                reference(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0].double().numpy()
            )
        row = {"cls": hidden[0], "mean": hidden.mean(0), "last": hidden[-1]}[pooling]
        rows.append(row / np.linalg.norm(row))
    return np.array(rows)


def vectors(answer: httpx.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    return np.array([one["embedding"] for one in answer.json()["data"]])


def test_vectors_are_those_of_transformers(server: ServerProcess, model: Path) -> None:
    """Some of the texts are longer than a step is meant to be."""
    asked = [*texts(40), "W3 w4", "unknownword"]
    answer = server.post("/v1/embeddings", {"model": "bert", "input": asked})
    np.testing.assert_allclose(vectors(answer), expected(model, asked), atol=1e-5)
    for pooling in ("mean", "last"):
        answer = server.post("/v1/embeddings", {"model": "bert", "input": asked[:5], "pooling": pooling})
        np.testing.assert_allclose(vectors(answer), expected(model, asked[:5], pooling), atol=1e-5)
    same = server.post("/api/embed", {"model": "bert", "input": asked[:3]}).json()["embeddings"]
    np.testing.assert_allclose(np.array(same), expected(model, asked[:3]), atol=1e-5)


def test_what_an_encoder_cannot_do_is_a_clear_error(server: ServerProcess) -> None:
    chat = {"model": "bert", "messages": [{"role": "user", "content": "hi"}]}
    for path, body in (
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"model": "bert", "prompt": "hi"}),
    ):
        answer = server.post(path, body)
        assert answer.status_code == 400 and "embeddings" in answer.json()["error"]["message"], answer.text
    long = server.post("/v1/embeddings", {"model": "bert", "input": " ".join(WORDS * 3)})
    assert long.status_code == 400 and "128" in long.json()["error"]["message"]
    cut = server.post(
        "/v1/embeddings", {"model": "bert", "input": " ".join(WORDS * 3), "truncate_prompt_tokens": -1}
    )
    assert cut.status_code == 200 and cut.json()["usage"]["prompt_tokens"] == 128
    card = server.get("/v1/models").json()["data"][0]
    assert card["generates"] is False and card["max_model_len"] == 128


async def test_every_call_is_answered_though_the_process_is_killed(
    server: ServerProcess, model: Path
) -> None:
    asked = texts(24, seed=5)
    right = expected(model, asked)

    async def ask(client: httpx.AsyncClient) -> np.ndarray:
        return vectors(await client.post("/v1/embeddings", json={"model": "bert", "input": asked}))

    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        calls = [asyncio.create_task(ask(client)) for _ in range(8)]
        for _ in range(3):
            await asyncio.sleep(0.05)
            for pid in server.children():
                os.kill(pid, signal.SIGKILL)
        for found in await asyncio.gather(*calls):
            np.testing.assert_allclose(found, right, atol=1e-5)
