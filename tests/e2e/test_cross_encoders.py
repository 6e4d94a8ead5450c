"""Cross-encoders behind the HTTP server: scores of transformers for pairs of texts, also while their process is killed; cuts and
refusals; hostile bodies."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.chaos.readers import resident_mib
from tests.e2e.server_process import ServerProcess
from tests.engine.text.test_gguf_encoder_tokenizers import xlm_metadata
from tests.executors.llm.encoder.gguf_encoders import write_encoder

WORDS = [f"w{number}" for number in range(60)]
LENGTH = 96
SIZES = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96, "initializer_range": 0.3,
    "num_labels": 1,
}  # fmt: skip
FAMILIES = ("bert", "xlm-roberta", "modernbert")


def write_bert(folder: Path) -> None:
    """As cross-encoder/ms-marco-MiniLM: types for the second text, and scores that are logits."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    names = [*special, *WORDS, *[f"##{letter}" for letter in "abcdefghij"]]
    config = transformers.BertConfig(vocab_size=len(names), max_position_embeddings=LENGTH, **SIZES)
    config.sentence_transformers = {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.0.1"}
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    made = Tokenizer(models.WordPiece({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    made.add_special_tokens(special)
    made.save(str(folder / "tokenizer.json"))
    marks = {
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "mask_token": "[MASK]",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **marks}))


def write_xlm_roberta(folder: Path) -> None:
    """As BAAI/bge-reranker: one type of tokens, two marks between the texts, and scores that are probabilities."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [
        *[(one, 0.0) for one in special],
        *[(f"▁{one}", -1.0) for one in WORDS],
        ("▁", -3.0),
        ("<mask>", 0.0),
    ]
    config = transformers.XLMRobertaConfig(
        vocab_size=len(pieces), max_position_embeddings=LENGTH + 2, type_vocab_size=1, **SIZES
    )
    transformers.XLMRobertaForSequenceClassification(config).save_pretrained(folder)
    made = Tokenizer(models.Unigram(pieces, unk_id=3))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    made.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 2)]
    )
    made.add_special_tokens([*special, "<mask>"])
    made.save(str(folder / "tokenizer.json"))
    marks = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "XLMRobertaTokenizer", "cls_token": "<s>", "sep_token": "</s>", **marks}
        )
    )


def write_modernbert(folder: Path) -> None:
    """As gte-reranker-modernbert: no types of tokens, the mean of a pair, and scores that are probabilities."""
    write_bert(folder)
    config = transformers.ModernBertConfig(
        vocab_size=5 + len(WORDS) + 10, max_position_embeddings=LENGTH, local_attention=16, classifier_pooling="mean",
        initializer_cutoff_factor=3.0, pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3, **SIZES,
    )  # fmt: skip
    transformers.ModernBertForSequenceClassification(config).save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    names = {
        "model_input_names": ["input_ids", "attention_mask"],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), **names}))


WRITERS = {"bert": write_bert, "xlm-roberta": write_xlm_roberta, "modernbert": write_modernbert}


class Served:
    """A server, and transformers with the same files."""

    def __init__(self, server: ServerProcess, family: str, folder: Path) -> None:
        self.server, self.family, self.folder = server, family, folder
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()

    def logits(self, pairs: list[tuple[str, str]], **options: Any) -> np.ndarray:
        """float64 [pairs] of transformers."""
        rows = []
        for query, document in pairs:
            with torch.no_grad():
                # In lists, as sentence-transformers gives them: alone, an empty document would be taken for none.
                given = self.tokenizer([query], [document], return_tensors="pt", **options)
                rows.append(float(self.model(**given).logits))
        return np.array(rows)

    def scores(self, pairs: list[tuple[str, str]], **options: Any) -> np.ndarray:
        """What sentence-transformers makes of them."""
        logits = self.logits(pairs, **options)
        return logits if self.family == "bert" else 1 / (1 + np.exp(-logits))

    def rerank(self, query: str, documents: list[str], **body: Any) -> np.ndarray:
        """float64 [documents], in the order of the request."""
        answer = self.server.post(
            "/v1/rerank", {"model": "cross", "query": query, "documents": documents, **body}
        )
        return by_index(answer, len(documents))


def by_index(answer: httpx.Response, count: int) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    scores = [one["relevance_score"] for one in results]
    assert scores == sorted(scores, reverse=True)
    found = {one["index"]: one["relevance_score"] for one in results}
    return np.array([found[number] for number in range(count)])


@pytest.fixture(scope="module", params=FAMILIES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(7)
    WRITERS[request.param](folder)
    # A step has room for fewer tokens than the longest pair has.
    limits = ["--max-num-batched-tokens", "64", "--max-num-seqs", "16"]
    arguments = [str(folder), "--served-model-name", "cross", *limits]
    with ServerProcess(arguments, tmp_path_factory.mktemp("server")) as server:
        yield Served(server, request.param, folder)


def texts(count: int, longest: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(1, longest))) for _ in range(count)]


def test_scores_are_those_of_transformers(served: Served) -> None:
    documents = [*texts(40, 70), "", "unknownword w3", "[SEP] w3 </s> w4"]
    query = "w1 w2 w3 w40"
    right = served.scores([(query, one) for one in documents])
    assert np.ptp(right) > 0.01
    np.testing.assert_allclose(served.rerank(query, documents), right, atol=1e-5)
    first, second = texts(9, 30, 1), texts(9, 30, 2)
    answer = served.server.post("/v1/score", {"model": "cross", "text_1": first, "text_2": second})
    found = [one["score"] for one in answer.json()["data"]]
    np.testing.assert_allclose(found, served.scores(list(zip(first, second, strict=True))), atol=1e-5)
    raw = served.rerank(query, documents[:5], use_activation=False)
    np.testing.assert_allclose(raw, served.logits([(query, one) for one in documents[:5]]), atol=1e-5)


def test_types_matter_where_a_model_has_them(served: Served) -> None:
    """The scores above would be wrong without: so much they change."""
    encoded = served.tokenizer("w1 w2", "w3 w4 w5", return_tensors="pt")
    assert ("token_type_ids" in encoded) == (served.family == "bert")
    if served.family == "bert":
        with torch.no_grad():
            without = float(
                served.model(**{**encoded, "token_type_ids": encoded["token_type_ids"] * 0}).logits
            )
        assert abs(served.logits([("w1 w2", "w3 w4 w5")])[0] - without) > 1e-3


def test_documents_are_cut_as_transformers_cuts_them(served: Served) -> None:
    query, long = "w1 w2 w3", " ".join(WORDS * 2)
    refused = served.server.post("/v1/rerank", {"model": "cross", "query": query, "documents": ["w1", long]})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (
        400,
        "documents.1",
        "context_length_exceeded",
    )
    for given, length in ((-1, LENGTH), (20, 20), (8, 8)):
        documents = [long, "w5", *texts(3, 60, 5)]
        right = served.scores(
            [(query, one) for one in documents], truncation="only_second", max_length=length
        )
        found = served.rerank(query, documents, truncate_prompt_tokens=given)
        np.testing.assert_allclose(found, right, atol=1e-5)
    body = {"model": "cross", "query": long, "documents": ["w1"], "truncate_prompt_tokens": -1}
    refused = served.server.post("/v1/rerank", body)
    assert refused.status_code == 400 and "none of the document" in refused.json()["error"]["message"]


def test_what_a_cross_encoder_cannot_do_is_a_clear_error(served: Served) -> None:
    chat = {"model": "cross", "messages": [{"role": "user", "content": "hi"}]}
    for path, body in (
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"model": "cross", "prompt": "hi"}),
        ("/v1/messages", {**chat, "max_tokens": 5}),
    ):
        answer = served.server.post(path, body)
        assert answer.status_code == 400, answer.text
        assert "an encoder" in answer.text and "/v1/rerank" in answer.text
    answer = served.server.post(
        "/v1/rerank", {"model": "cross", "query": "a", "documents": ["b"], "instruction": "Find"}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "instruction")
    card = served.server.get("/v1/models").json()["data"][0]
    assert (card["generates"], card["scores"], card["max_model_len"]) == (False, "reranker", LENGTH)
    assert "scores only: the model is an encoder" in served.server.log()


async def test_every_call_is_answered_though_the_process_is_killed(served: Served) -> None:
    query, documents = "w7 w8", texts(24, 60, seed=5)
    right = served.scores([(query, one) for one in documents])

    async def ask(client: httpx.AsyncClient) -> np.ndarray:
        body = {"model": "cross", "query": query, "documents": documents}
        return by_index(await client.post("/v1/rerank", json=body), len(documents))

    async with httpx.AsyncClient(base_url=served.server.url, timeout=60) as client:
        calls = [asyncio.create_task(ask(client)) for _ in range(8)]
        for _ in range(3):
            await asyncio.sleep(0.05)
            for pid in served.server.children():
                os.kill(pid, signal.SIGKILL)
        for found in await asyncio.gather(*calls):
            np.testing.assert_allclose(found, right, atol=1e-5)


def test_a_gguf_file_scores_as_the_checkpoint_that_it_was_made_of(tmp_path: Path) -> None:
    """As bge-reranker-v2-m3: a head, and a tokenizer that puts two marks between the texts, both from the file."""
    folder = tmp_path / "model"
    folder.mkdir()
    torch.manual_seed(7)
    write_xlm_roberta(folder)
    tokens = {
        name.replace(".", "__"): value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in xlm_metadata(Tokenizer.from_file(str(folder / "tokenizer.json")), padded=0).items()
        if name.startswith("tokenizer.")
    }
    file = write_encoder(tmp_path / "reranker.gguf", folder, **tokens, pooling_type=4)
    with ServerProcess([str(file), "--served-model-name", "cross"], tmp_path) as server:
        one = Served(server, "xlm-roberta", folder)
        documents = [*texts(12, 60, 4), ""]
        right = one.scores([("w1 w2 w3", document) for document in documents])
        assert np.ptp(right) > 0.01
        np.testing.assert_allclose(one.rerank("w1 w2 w3", documents), right, atol=1e-5)
        card = server.get("/v1/models").json()["data"][0]
        assert (card["scores"], card["max_model_len"]) == ("reranker", LENGTH)
        assert "scores only: the model is an encoder" in server.log()
        refused = server.post("/v1/embeddings", {"model": "cross", "input": "w1"})
        assert refused.status_code == 400 and "names rank, a reranker's" in refused.text


@pytest.mark.long(extended=True)
def test_workers_of_the_api_join_pairs_too(tmp_path: Path) -> None:
    """Where a second text begins goes through one more process."""
    folder = tmp_path / "model"
    folder.mkdir()
    torch.manual_seed(9)
    write_bert(folder)
    arguments = [str(folder), "--served-model-name", "cross", "--api-server-count", "2"]
    with ServerProcess(arguments, tmp_path) as server:
        one = Served(server, "bert", folder)
        documents = texts(5, 40, 3)
        for _ in range(3):
            right = one.scores([("w1 w2", document) for document in documents])
            np.testing.assert_allclose(one.rerank("w1 w2", documents), right, atol=1e-5)


def hostile(served: Served) -> list[tuple[str, dict[str, Any] | bytes, tuple[int, ...]]]:
    """Bodies, and the statuses that answer them: 400 also where tokenizing takes longer than it may."""
    megabyte = "w1 " * 2**18
    many = ["w1"] * 100_000
    rerank, score, embed = "/v1/rerank", "/v1/score", "/v1/embeddings"
    surrogate = rb'{"model": "cross", "query": "a", "documents": ["\ud800"]}'
    return [
        (rerank, {"query": "a", "documents": [megabyte]}, (400,)),
        (rerank, {"query": "a", "documents": [megabyte], "truncate_prompt_tokens": -1}, (200, 400)),
        (rerank, {"query": megabyte, "documents": ["a"]}, (400,)),
        (rerank, {"query": megabyte, "documents": ["a"], "truncate_prompt_tokens": -1}, (400,)),
        (rerank, {"query": "x" * 2**20, "documents": ["a"]}, (200, 400)),
        (rerank, {"query": "a", "documents": many}, (400,)),
        (rerank, {"query": "a\0b", "documents": ["\0", "\0" * 100, "\ufffd\ufeff\u202e"]}, (200, 400)),
        (rerank, surrogate, (400,)),
        (rerank, surrogate.replace(b'"a"', rb'"\udc00"'), (400,)),
        (rerank, {"query": "", "documents": ["a"]}, (400,)),
        (rerank, {"query": "a", "documents": [""]}, (200,)),
        (rerank, {"query": " ", "documents": [" "]}, (200,)),
        (score, {"text_1": "a", "text_2": many}, (400,)),
        (score, {"text_1": "", "text_2": "a"}, (400,)),
        (embed, {"input": many}, (400,)),
        (embed, {"input": megabyte}, (400,)),
        (embed, {"input": "\0"}, (200,)),
    ]


def at_rest(served: Served) -> float:
    """Resident MiB of all processes once the server has given back what it does not need: a second without calls. A machine with
    other work gets to it later; then the memory falls later."""
    used, until = [], time.monotonic() + 10
    while len(used) < 3 or (max(used[-3:]) - min(used[-3:]) > 1 and time.monotonic() < until):
        time.sleep(1.2)
        used.append(sum(map(resident_mib, [served.server.pid, *served.server.children()])))
    return used[-1]


@pytest.mark.timeout(300)
def test_hostile_bodies_are_answered_and_leave_nothing(served: Served) -> None:
    """Memory comes and goes with a megabyte of text, and does not grow: at rest after nine rounds it is no more than it was after
    three or six."""
    used: list[float] = []
    for number in range(1, 10):
        for path, body, statuses in hostile(served):
            if isinstance(body, bytes):
                answer = httpx.post(
                    f"{served.server.url}{path}",
                    content=body,
                    headers={"Content-Type": "application/json"},
                    timeout=60,
                )
            else:
                answer = served.server.post(path, {"model": "cross", **body})
            assert answer.status_code in statuses, (path, str(body)[:80], answer.text[:300])
            if answer.status_code == 400:
                assert answer.json()["error"]["message"]
        if number % 3 == 0:
            used.append(at_rest(served))
    assert used[2] < max(used[:2]) + 12, f"MiB after each three rounds: {used}"
    np.testing.assert_allclose(served.rerank("w1", ["w2"]), served.scores([("w1", "w2")]), atol=1e-5)
