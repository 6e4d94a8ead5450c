"""An embedding model with all that sentence-transformers says of one: vectors as it makes them, over HTTP, and what info says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.e2e.server_process import ServerProcess
from tests.executors.llm.encoder.test_heads import with_dense, with_modules

WORDS = [f"{letter}{number}" for letter in "wW" for number in range(30)]
LENGTH, WIDTH = 40, 20
PROMPTS = {"query": "W1 w2 ", "document": "W3 "}


class Reference:
    """transformers and torch with the same files: prompt, lower case, mean, linear layer."""

    def __init__(self, folder: Path) -> None:
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
        torch.manual_seed(5)
        config = transformers.BertConfig(
            vocab_size=len(names), hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96,
            max_position_embeddings=64, initializer_range=0.3,
        )  # fmt: skip
        self.model = transformers.BertModel(config).eval()
        self.model.save_pretrained(folder)
        self.tokenizer = Tokenizer(
            models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]")
        )
        self.tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        self.tokenizer.post_processor = processors.TemplateProcessing(
            "[CLS] $0 [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        self.tokenizer.save(str(folder / "tokenizer.json"))
        # The class that takes a file as it is: that of BERT would put texts in lower case by itself.
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        with_modules(folder, "Pooling", "Dense", "Normalize")
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
        self.layer = with_dense(folder / "2_Dense", 48, WIDTH, "Tanh")
        lengths = {"max_seq_length": LENGTH, "do_lower_case": True}
        (folder / "sentence_bert_config.json").write_text(json.dumps(lengths))
        settings = {"prompts": PROMPTS, "default_prompt_name": "document", "similarity_fn_name": "cosine"}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))

    def vectors(self, texts: list[str], prompt: str = PROMPTS["document"]) -> np.ndarray:
        """float64 [texts, width] of length 1."""
        rows = []
        for text in texts:
            ids = self.tokenizer.encode((prompt + text).lower()).ids
            ids = ids if len(ids) <= LENGTH else [*ids[: LENGTH - 1], ids[-1]]
            with torch.no_grad():
                row = (
                    self.layer(self.model(torch.tensor([ids])).last_hidden_state[0].mean(0)).double().numpy()
                )
            rows.append(row / np.linalg.norm(row))
        return np.array(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.fixture(scope="module")
def server(
    folder: Path, reference: Reference, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    arguments = [str(folder), "--served-model-name", "embed"]
    with ServerProcess(arguments, tmp_path_factory.mktemp("server")) as started:
        yield started


def vectors(answer: httpx.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    return np.array([one["embedding"] for one in answer.json()["data"]])


TEXTS = ["W4 w5", "w6", "W1 " * 30, "w7 W8 w9 W9"]


def test_vectors_are_those_of_the_whole_model(server: ServerProcess, reference: Reference) -> None:
    def embed(**body: object) -> np.ndarray:
        return vectors(server.post("/v1/embeddings", {"model": "embed", "input": TEXTS, **body}))

    right = reference.vectors(TEXTS)
    np.testing.assert_allclose(embed(), right, atol=1e-5)
    np.testing.assert_allclose(
        embed(prompt_name="query"), reference.vectors(TEXTS, PROMPTS["query"]), atol=1e-5
    )
    np.testing.assert_allclose(embed(prompt_name=""), reference.vectors(TEXTS, ""), atol=1e-5)
    assert embed().shape == (len(TEXTS), WIDTH)
    short = right[:, :7] / np.linalg.norm(right[:, :7], axis=1)[:, None]
    np.testing.assert_allclose(embed(dimensions=7), short, atol=1e-5)
    refused = server.post("/v1/embeddings", {"model": "embed", "input": "w1", "dimensions": WIDTH + 1})
    assert refused.status_code == 400 and str(WIDTH) in refused.json()["error"]["message"]
    scores = server.post("/v1/score", {"model": "embed", "text_1": TEXTS[0], "text_2": TEXTS[1:]}).json()[
        "data"
    ]
    np.testing.assert_allclose([one["score"] for one in scores], right[1:] @ right[0], atol=1e-5)


def test_texts_end_where_sentence_transformers_ends_them(server: ServerProcess, reference: Reference) -> None:
    long = "w1 W2 " * 30
    refused = server.post("/v1/embeddings", {"model": "embed", "input": long})
    error = refused.json()["error"]
    assert refused.status_code == 400 and str(LENGTH) in error["message"], error
    cut = {"model": "embed", "input": long, "truncate_prompt_tokens": -1, "truncation_side": "right"}
    np.testing.assert_allclose(
        vectors(server.post("/v1/embeddings", cut)), reference.vectors([long]), atol=1e-5
    )
    card = server.get("/v1/models").json()["data"][0]
    assert (card["max_model_len"], card["generates"], card["scores"]) == (LENGTH, False, "embedding")
    assert "is not applied" not in server.log()


def test_info_tells_what_the_files_say(folder: Path, reference: Reference) -> None:
    command = [str(Path(sys.executable).with_name("cohort")), "info", str(folder)]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "embeddings only: an encoder" in text and "is not applied" not in text
    assert "a linear layer of width 20 behind the pooling" in text
    assert "40 tokens, at most 64 with --max-model-len" in text
