"""Qwen3-Reranker and Qwen3-Embedding as they are published, small and random: the served scores and vectors are transformers'."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, processors

from tests.e2e.checkpoints import TEMPLATE, write_tokenizer
from tests.e2e.server_process import ServerProcess
from tests.executors.gguf_files import converted_checkpoint, sizes, write_gguf

pytestmark = pytest.mark.long

TOLERANCE = 1e-4
YES, NO, END = 260, 261, 262
FIELDS: dict[str, Any] = {
    "vocab_size": 264, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 24, "intermediate_size": 96, "max_position_embeddings": 2048, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "pad_token_id": 0,
}  # fmt: skip
BEGIN = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note "
    'that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
INSTRUCT = "Given a web search query, retrieve relevant passages that answer the query"
QUERY = "What is the capital of Peru?"
DOCUMENTS = [
    "Lima is its capital.",
    "A llama is a mammal.",
    "yes",
    "",
    *(f"Text {n} " * n for n in range(1, 15)),
]


def write_texts(folder: Path, appends_end: bool = False) -> Tokenizer:
    """Qwen3's marks and the two answers, each one token; Qwen3-Embedding's tokenizer appends an end token to every text."""
    write_tokenizer(folder, TEMPLATE)
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.add_tokens(["<think>", "</think>", "yes", "no"])
    raw.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    if appends_end:
        raw.post_processor = processors.TemplateProcessing(
            single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", END)]
        )
    raw.save(str(folder / "tokenizer.json"))
    assert [raw.token_to_id(text) for text in ("yes", "no", "<|endoftext|>")] == [YES, NO, END]
    return raw


def write_weights(folder: Path, kind: str, **fields: Any) -> Any:
    torch.manual_seed(2)
    config = transformers.Qwen3Config(**FIELDS, **fields, bos_token_id=None, eos_token_id=None)
    model = getattr(transformers, f"Qwen3{kind}")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 1.2 / parameter.shape[-1] ** 0.5)
            else:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return model


def prompt(document: str, instruction: str = INSTRUCT) -> str:
    return (
        f"{BEGIN}<Instruct>: {instruction}\n<Query>: {QUERY}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n"
        "<think>\n\n</think>\n\n"
    )


def started(folder: Path, logs: Path, *args: str) -> ServerProcess:
    small = ["--dtype", "float32", "--max-num-batched-tokens", "512", "--kv-cache-memory-bytes", "64MiB"]
    return ServerProcess([str(folder), *small, *args], logs)


def scores_of(answer: dict[str, Any]) -> list[float]:
    return [one["score"] for one in answer["data"]]


def test_qwen3_reranker(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen3-Reranker-0.6B"
    folder.mkdir()
    raw, model = write_texts(folder), write_weights(folder, "ForCausalLM")

    def expected(document: str, instruction: str = INSTRUCT) -> float:
        ids = raw.encode(prompt(document, instruction), add_special_tokens=False).ids
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1, [NO, YES]]
        return float(logits.softmax(0)[1])

    with started(folder, tmp_path) as server:
        assert "scores of a reranker" in server.log()
        answer = server.post("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS}).json()
        found = {one["index"]: one["relevance_score"] for one in answer["results"]}
        for index, document in enumerate(DOCUMENTS):
            assert abs(found[index] - expected(document)) < TOLERANCE, document
        order = [one["relevance_score"] for one in answer["results"]]
        assert order == sorted(order, reverse=True) and max(order) - min(order) > 0.1
        # All prompts begin alike, and all but the first, or those of its step, find that in the prefix cache.
        shared = len(raw.encode(prompt("").partition("<|im_end|>\n<|im_start|>a")[0]).ids) // 16 * 16
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= shared * (len(DOCUMENTS) - 2)

        told = "Find a capital"
        body = {"queries": QUERY, "documents": DOCUMENTS[:3], "instruction": told}
        found_scores = scores_of(server.post("/score", body).json())
        np.testing.assert_allclose(
            found_scores, [expected(one, told) for one in DOCUMENTS[:3]], atol=TOLERANCE
        )
        # A client that writes the format itself, as vLLM's examples do.
        head, _, tail = prompt("Lima").partition("Lima")
        written = server.post("/v1/score", {"text_1": head, "text_2": f"Lima{tail}"}).json()
        np.testing.assert_allclose(scores_of(written), [expected("Lima")], atol=TOLERANCE)
        # It still generates, and embeds.
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
        assert server.post("/v1/chat/completions", chat).status_code == 200
        assert server.post("/v1/embeddings", {"input": "Hi"}).status_code == 200
        asyncio.run(_leaves(server))


async def _leaves(server: ServerProcess) -> None:
    """A client that goes away ends the computation."""
    body = {"query": QUERY, "documents": [f"{n} " * 400 for n in range(600)]}
    async with httpx.AsyncClient(base_url=server.url) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/rerank", json=body, timeout=0.5)
    deadline = time.monotonic() + 10
    while server.metric("cohort_requests_running") + server.metric("cohort_requests_waiting"):
        assert time.monotonic() < deadline, "documents without a client are still computed"
        await asyncio.sleep(0.05)
    assert server.metric("cohort_kv_cache_usage_ratio") == 0.0


@pytest.mark.long(extended=True)
def test_a_reranker_with_a_classification_head(tmp_path: Path) -> None:
    folder = tmp_path / "converted"
    folder.mkdir()
    raw, model = write_texts(folder), write_weights(folder, "ForSequenceClassification", num_labels=1)
    with started(folder, tmp_path) as server:
        assert "scores only" in server.log()
        body = {"text_1": QUERY, "text_2": DOCUMENTS[:3]}
        found = scores_of(server.post("/v1/score", body).json())
        raw_scores = scores_of(server.post("/v1/score", {**body, "use_activation": False}).json())
        for document, score, logit in zip(DOCUMENTS, found, raw_scores, strict=False):
            with torch.no_grad():
                ids = raw.encode(prompt(document), add_special_tokens=False).ids
                wanted = model(torch.tensor([ids])).logits[0, 0]
            assert abs(score - float(wanted.sigmoid())) < TOLERANCE
            assert abs(logit - float(wanted)) < TOLERANCE
        refused = server.post("/v1/completions", {"prompt": "Hi"})
        assert refused.status_code == 400
        assert "It serves POST /v1/rerank" in refused.json()["error"]["message"]


def _gguf(folder: Path, pooling_type: int, with_head: bool) -> Path:
    """What llama.cpp's converter makes of the checkpoint: of a reranker the rows of yes and no are a head of their own."""
    tensors = converted_checkpoint(folder, "qwen3")
    metadata = {**sizes({**FIELDS, "rope_theta": 10000.0}), "pooling_type": pooling_type}
    if with_head:
        tensors["cls.output.weight"] = tensors["token_embd.weight"][[YES, NO]].clone()
        metadata["classifier.output_labels"] = ["yes", "no"]
    return write_gguf(folder / f"pooling-{pooling_type}.gguf", "qwen3", metadata, tensors)


def test_a_gguf_reranker(tmp_path: Path) -> None:
    folder = tmp_path / "converted"
    folder.mkdir()
    raw, model = write_texts(folder), write_weights(folder, "ForCausalLM")
    file = _gguf(folder, 4, with_head=True)
    with started(file, tmp_path, "--tokenizer", str(folder)) as server:
        body = {"query": QUERY, "documents": DOCUMENTS}
        answer = server.post("/v1/rerank", body).json()
        found = {one["index"]: one["relevance_score"] for one in answer["results"]}
        for index, document in enumerate(DOCUMENTS):
            ids = raw.encode(prompt(document), add_special_tokens=False).ids
            with torch.no_grad():
                expected = float(model(torch.tensor([ids])).logits[0, -1, [NO, YES]].softmax(0)[1])
            assert abs(found[index] - expected) < TOLERANCE, document
        assert max(found.values()) - min(found.values()) > 0.1
        assert server.post("/v1/completions", {"prompt": "Hi"}).status_code == 400
        refused = server.post("/v1/embeddings", {"input": "Hi"}).json()["error"]["message"]
        assert "names rank, a reranker's" in refused


def test_a_gguf_embedding_model(tmp_path: Path) -> None:
    """The mean, because the file says so, and not the last token's state."""
    folder = tmp_path / "converted"
    folder.mkdir()
    raw, model = write_texts(folder), write_weights(folder, "ForCausalLM")
    file = _gguf(folder, 1, with_head=False)
    with started(file, tmp_path, "--tokenizer", str(folder)) as server:
        ids = raw.encode(QUERY).ids
        with torch.no_grad():
            mean = model.model(torch.tensor([ids])).last_hidden_state[0].mean(0)
        found = server.post("/v1/embeddings", {"input": [QUERY]}).json()["data"][0]["embedding"]
        np.testing.assert_allclose(found, mean / mean.norm(), atol=TOLERANCE)


@pytest.mark.long(extended=True)
def test_qwen3_embedding(tmp_path: Path) -> None:
    """Its tensors have no beginning of their names, and its tokenizer appends the token whose state is the vector."""
    folder = tmp_path / "embedder"
    folder.mkdir()
    raw, model = write_texts(folder, appends_end=True), write_weights(folder, "ForCausalLM")
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(bare, folder / "model.safetensors", {"format": "pt"})
    types = ("models.Transformer", "models.Pooling", "models.Normalize")
    steps = [
        {"idx": i, "path": "1_Pooling" if i == 1 else "", "type": f"sentence_transformers.{one}"}
        for i, one in enumerate(types)
    ]
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "1_Pooling").mkdir()
    pooling = {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False, "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    query = f"Instruct: {INSTRUCT}\nQuery:"
    prompts = {"prompts": {"query": query, "document": ""}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))

    def expected(text: str, dimensions: int = 64) -> NDArray[np.float32]:
        ids = raw.encode(text).ids
        assert ids[-1] == END
        with torch.no_grad():
            vector = model.model(torch.tensor([ids])).last_hidden_state[0, -1, :dimensions]
        found: NDArray[np.float32] = (vector / vector.norm()).numpy()
        return found

    with started(folder, tmp_path) as server:

        def embed(**body: Any) -> list[Any]:
            answer = server.post("/v1/embeddings", {"input": [QUERY], **body}).json()
            return [one["embedding"] for one in answer["data"]]

        np.testing.assert_allclose(embed(), [expected(QUERY)], atol=TOLERANCE)
        np.testing.assert_allclose(embed(dimensions=16), [expected(QUERY, 16)], atol=TOLERANCE)
        np.testing.assert_allclose(embed(prompt_name="query"), [expected(query + QUERY)], atol=TOLERANCE)
        [text] = embed(instruction="Find", encoding_format="base64")
        told = expected(f"Instruct: Find\nQuery:{QUERY}")
        np.testing.assert_allclose(np.frombuffer(base64.b64decode(text), "<f4"), told, atol=TOLERANCE)
        body = {"query": QUERY, "documents": DOCUMENTS[:3]}
        for one in server.post("/v1/rerank", body).json()["results"]:
            wanted = float(expected(QUERY) @ expected(DOCUMENTS[one["index"]]))
            assert abs(one["relevance_score"] - wanted) < TOLERANCE
