"""POST /v1/rerank and /v1/score over a scripted engine: prompts, forms of bodies, the order of answers, and refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.errors import InvalidRequest
from engine.text.tokenizer import PairEncoding
from executors.contract import ConfigError
from server.apis.scoring.schema import MAX_TOTAL_CHARACTERS
from server.model_defaults.pooling import DefaultPooling
from server.model_defaults.retrieval import EmbeddingPrompts, Scoring
from server.templates.joined_pairs import JoinedPairs, pair_form
from server.templates.pairs import Qwen3Pairs, TemplatePairs, pair_prompt
from server.templates.template import ChatTemplate
from tests.server.fakes import BOS, ByteTokenizer, House, error_of

YES, NO = ord("y"), ord("n")
ROLES = (
    "{% for m in messages if m['role'] == 'system' %}I {{ m.content }} {% endfor %}"
    "{% for m in messages if m['role'] == 'query' %}Q {{ m.content }}{% endfor %} "
    "{% for m in messages if m['role'] == 'document' %}D {{ m.content }}{% endfor %}."
)
"""A template that knows the roles of rerankers."""


@pytest.fixture
def reranker(house: House) -> House:
    """Scores by the numbers of the letters y and n in a prompt."""
    assert house.state.model is not None
    template = ChatTemplate(ROLES, {})
    house.state.model = replace(
        house.state.model, scoring=Scoring((YES, NO)), pairs=pair_prompt(template, False)
    )
    return house


@pytest.fixture
def embedder(house: House) -> House:
    assert house.state.model is not None
    house.state.model = replace(
        house.state.model,
        scoring=Scoring(by_vectors=True),
        pooling=DefaultPooling("last", declared=True),
        prompts=EmbeddingPrompts({"query": "Instruct: Do it\nQuery:"}, ("Instruct: ", "\nQuery:")),
    )
    return house


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


async def rerank(house: House, path: str = "/v1/rerank", **body: Any) -> Any:
    return await house.post(path, {"query": "q", "documents": ["nn", "yyy", "a"], **body})


async def test_documents_are_ordered_by_their_scores(reranker: House) -> None:
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        response = await rerank(reranker, path)
        assert response.status_code == 200, response.text
        answer = response.json()
        assert answer.pop("id").startswith("rerank-")
        assert answer == {
            "object": "list",
            "model": "fake",
            "results": [
                {"index": 1, "document": {"text": "yyy"}, "relevance_score": pytest.approx(sigmoid(3))},
                {"index": 2, "document": {"text": "a"}, "relevance_score": 0.5},
                {"index": 0, "document": {"text": "nn"}, "relevance_score": pytest.approx(sigmoid(-2))},
            ],
            "usage": {"prompt_tokens": 27, "total_tokens": 27, "prompt_tokens_details": {"cached_tokens": 0}},
        }
    asked = reranker.engine.embedded[0]
    assert asked.prompts == (tuple(b"Q q D nn."), tuple(b"Q q D yyy."), tuple(b"Q q D a."))
    assert (asked.pooling, asked.label_ids) == ("logits", (YES, NO))


async def test_what_of_the_answer_is_asked_for(reranker: House) -> None:
    answer = (await rerank(reranker, top_n=2, return_documents=False, use_activation=False)).json()
    assert answer["results"] == [
        {"index": 1, "relevance_score": 3.0},
        {"index": 2, "relevance_score": 0.0},
    ]
    assert len((await rerank(reranker, top_n=0)).json()["results"]) == 3
    assert len((await rerank(reranker, top_n=9)).json()["results"]) == 3
    answer = (await rerank(reranker, documents=[{"text": "y"}, "n"])).json()
    assert [one["document"] for one in answer["results"]] == [{"text": "y"}, {"text": "n"}]
    equal = (await rerank(reranker, documents=["a", "b", "c"])).json()
    assert [one["index"] for one in equal["results"]] == [0, 1, 2]


async def test_an_instruction_goes_to_the_template_or_is_refused(reranker: House) -> None:
    await rerank(reranker, instruction="Find it", documents=["d"])
    assert reranker.engine.embedded[-1].prompts == (tuple(b"I Find it Q q D d."),)
    assert reranker.state.model is not None
    blind = ChatTemplate(ROLES.partition("{% endfor %}")[2], {})
    reranker.state.model = replace(reranker.state.model, pairs=pair_prompt(blind, False))
    error = error_of(await rerank(reranker, instruction="Find it"))
    assert (error["param"], error["code"]) == ("instruction", "unsupported_parameter")


@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
)
async def test_pairs_of_a_score(reranker: House, names: tuple[str, str]) -> None:
    first, second = names
    for path in ("/v1/score", "/score"):
        response = await reranker.post(path, {first: "q", second: ["y", "n"]})
        assert response.status_code == 200, response.text
        answer = response.json()
        assert answer.pop("id").startswith("score-") and answer.pop("created") > 0
        assert answer == {
            "object": "list",
            "model": "fake",
            "data": [
                {"index": 0, "object": "score", "score": pytest.approx(sigmoid(1))},
                {"index": 1, "object": "score", "score": pytest.approx(sigmoid(-1))},
            ],
            "usage": {"prompt_tokens": 16, "total_tokens": 16, "prompt_tokens_details": {"cached_tokens": 0}},
        }
    await reranker.post("/v1/score", {first: ["a", "b"], second: ["c", "d"]})
    await reranker.post("/v1/score", {first: "a", second: "c"})
    both, one = reranker.engine.embedded[-2:]
    assert both.prompts == (tuple(b"Q a D c."), tuple(b"Q b D d."))
    assert one.prompts == (tuple(b"Q a D c."),)


async def test_a_truncated_prompt_keeps_what_follows_the_document(reranker: House) -> None:
    for length, kept in ((9, b"Q q D ab."), (8, b"Q q D a."), (-1, b"Q q D abcdef.")):
        response = await rerank(reranker, documents=["abcdef"], truncate_prompt_tokens=length)
        assert response.status_code == 200, response.text
        assert reranker.engine.embedded[-1].prompts == (tuple(kept),)
    error = error_of(await rerank(reranker, documents=["abcdef"], truncate_prompt_tokens=7))
    assert error["param"] == "truncate_prompt_tokens" and "none of the document" in error["message"]
    long = "x" * 600
    error = error_of(await rerank(reranker, documents=["a", long]))
    assert (error["param"], error["code"]) == ("documents.1", "context_length_exceeded")
    assert (await rerank(reranker, documents=["a", long], truncate_prompt_tokens=-1)).status_code == 200
    assert len(reranker.engine.embedded[-1].prompts[1]) == 512


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": ""}, "query"),
        ({"query": ["a"]}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": ["a", 1]}, "documents.1"),
        ({"documents": [{"txt": "a"}]}, "documents.0.text"),
        ({"documents": ["a"] * 2049}, "documents"),
        ({"top_n": -1}, "top_n"),
        ({"top_n": "two"}, "top_n"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "left"}, "truncation_side"),
        ({"max_tokens_per_doc": 5}, "max_tokens_per_doc"),
        ({"rank_fields": ["title"]}, "rank_fields"),
        ({"chat_template": "x"}, "chat_template"),
        ({"top_k": 3}, "top_k"),
        ({"return_document": False}, "return_document"),
        ({"query": "q" * (MAX_TOTAL_CHARACTERS // 16), "documents": ["a"] * 16}, "documents"),
    ],
)
async def test_refused_reranks(reranker: House, body: dict[str, Any], param: str) -> None:
    response = await rerank(reranker, **body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert not reranker.engine.embedded


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text_1": "a"}, "text_2"),
        ({}, "text_1"),
        ({"text_1": "a", "documents": ["b"]}, "text_2"),
        ({"text_1": "a", "text_2": "b", "items": "c"}, "items"),
        ({"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
        ({"text_1": ["a", "b"], "text_2": "c"}, "text_1"),
        ({"text_1": "", "text_2": "c"}, "text_1"),
        ({"text_1": "a", "text_2": ["c", ""]}, "text_2"),
        ({"text_1": "a", "text_2": {"content": []}}, "text_2"),
    ],
)
async def test_refused_scores(reranker: House, body: dict[str, Any], param: str) -> None:
    response = await reranker.post("/v1/score", body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


async def test_an_embedding_models_scores_are_cosines(embedder: House) -> None:
    """The scripted vector of a text: its length, first and last id, and 0."""
    answer = (await embedder.post("/v1/score", {"text_1": "ab", "text_2": ["ab", "c"]})).json()
    vectors = [np.array(one) for one in ((3, 256, 98, 0), (2, 256, 99, 0))]
    a, c = (one / np.linalg.norm(one) for one in vectors)
    assert [one["score"] for one in answer["data"]] == [pytest.approx(1), pytest.approx(float(a @ c))]
    assert answer["usage"]["prompt_tokens"] == 3 + 3 + 2
    answer = (await rerank(embedder, instruction="Find", documents=["a"])).json()
    assert embedder.engine.embedded[-1].prompts[0] == (256, *b"Instruct: Find\nQuery:q")
    error = error_of(await rerank(embedder, use_activation=False))
    assert error["param"] == "use_activation"


@pytest.mark.parametrize("unit_length", [True, False])
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
async def test_scores_are_the_similarity_that_the_model_names(
    embedder: House, similarity: str, unit_length: bool
) -> None:
    assert embedder.state.model is not None
    unit_length = unit_length or similarity == "cosine"
    how = Scoring(by_vectors=True, similarity=similarity, unit_length=unit_length)
    embedder.state.model = replace(embedder.state.model, scoring=how)
    answer = (await embedder.post("/v1/score", {"text_1": "ab", "text_2": ["ab", "c"]})).json()
    a, c = (np.array(one) for one in ((3.0, 256.0, 98.0, 0.0), (2.0, 256.0, 99.0, 0.0)))
    if unit_length:
        a, c = (one / np.linalg.norm(one) for one in (a, c))
    right = {
        "cosine": lambda x, y: x @ y,
        "dot": lambda x, y: x @ y,
        "euclidean": lambda x, y: -(((x - y) ** 2).sum() ** 0.5),
        "manhattan": lambda x, y: -abs(x - y).sum(),
    }[similarity]
    found = [one["score"] for one in answer["data"]]
    assert found == [pytest.approx(right(a, a)), pytest.approx(right(a, c))]
    ranked = (await rerank(embedder, query="ab", documents=["c", "ab"])).json()["results"]
    assert [one["index"] for one in ranked] == ([1, 0] if right(a, a) > right(a, c) else [0, 1])


async def test_a_model_that_scores_nothing_says_so(house: House) -> None:
    assert house.state.model is not None
    house.state.model = replace(house.state.model, scoring=Scoring(), pairs=None)
    error = error_of(await rerank(house))
    assert (error["param"], error["code"]) == ("model", "unsupported_value")
    assert "--classifier-from-token" in error["message"]
    house.state.model = replace(house.state.model, scoring=Scoring((YES, NO)))
    error = error_of(await rerank(house))
    assert error["code"] == "no_chat_template" and "'query' and 'document'" in error["message"]


def test_qwen3s_own_format() -> None:
    text = Qwen3Pairs().text("What?", "That.", None)
    assert text == (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
        'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, '
        "retrieve relevant passages that answer the query\n<Query>: What?\n<Document>: That.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert "<Instruct>: Find it\n" in Qwen3Pairs().text("q", "d", "Find it")
    begin, _, end = text.partition("That.")
    assert Qwen3Pairs().text(begin, f"That.{end}", None) == text, "a client that writes the format itself"


def test_the_template_of_a_gguf_reranker() -> None:
    """One of the name `rerank`, whose places are filled in one pass."""
    chat = "{% for m in messages %}{{ m.content }}{% endfor %}"
    template = ChatTemplate({"default": chat, "rerank": "Q: {query} D: {document}!"}, {}, "template")
    pairs = pair_prompt(template, True)
    assert pairs is not None
    assert pairs.text("a {document}", "b {query}", None) == "Q: a {document} D: b {query}!"
    with pytest.raises(InvalidRequest, match="has no place for it"):
        pairs.text("a", "b", "Find it")
    qwen3 = Qwen3Pairs().text("{query}", "{document}", None)
    published = ChatTemplate({"default": chat, "rerank": qwen3}, {}, "template")
    assert isinstance(pair_prompt(published, True), Qwen3Pairs)  # which takes instructions, too
    without = ChatTemplate({"default": chat, "rerank": "Q: {query}"}, {}, "template")
    assert pair_prompt(without, False) is None


async def test_prompts_before_embedded_texts(embedder: House) -> None:
    async def prompt(**body: Any) -> Any:
        response = await embedder.post("/v1/embeddings", {"input": "Hi", **body})
        return embedder.engine.embedded[-1].prompts[0] if response.status_code == 200 else error_of(response)

    assert await prompt(prompt_name="query") == (256, *b"Instruct: Do it\nQuery:Hi")
    assert await prompt(instruction="Find") == (256, *b"Instruct: Find\nQuery:Hi")
    assert await prompt() == (256, *b"Hi")
    assert (await prompt(prompt_name="other"))["param"] == "prompt_name"
    assert (await prompt(prompt_name="query", instruction="Find"))["param"] == "instruction"
    assert (await prompt(prompt_name="query", input=[1, 2]))["param"] == "prompt_name"
    assert embedder.state.model is not None
    embedder.state.model = replace(embedder.state.model, prompts=EmbeddingPrompts())
    assert (await prompt(instruction="Find"))["code"] == "unsupported_parameter"


# -- cross-encoders ------------------------------------------------------------------------------------------------------


@pytest.fixture
def cross_encoder(house: House) -> House:
    """Pairs are joined by the tokenizer; the one label scores by the number of the letter with its number, so 0."""
    model = house.state.model
    assert model is not None
    info = replace(model.info, generates=False, num_labels=1, token_types=2)
    form = pair_form(model.template, model.tokenizer, info)
    assert isinstance(form, JoinedPairs)
    house.state.model = replace(model, info=info, scoring=Scoring((0,)), pairs=form)
    return house


async def test_pairs_are_joined_by_the_tokenizer(cross_encoder: House) -> None:
    response = await rerank(cross_encoder, query="qq", documents=["nn", "", "y"])
    assert response.status_code == 200, response.text
    [asked] = cross_encoder.engine.embedded
    q = (BOS, *b"qq", BOS)
    assert asked.prompts == ((*q, *b"nn", BOS), (*q, BOS), (*q, *b"y", BOS))
    assert (asked.pooling, asked.label_ids, asked.second_segments) == ("logits", (0,), (4, 4, 4))
    await cross_encoder.post("/v1/score", {"text_1": ["a", "bcd"], "text_2": ["e", "f"]})
    asked = cross_encoder.engine.embedded[-1]
    assert asked.prompts == ((BOS, 97, BOS, 101, BOS), (BOS, *b"bcd", BOS, 102, BOS))
    assert asked.second_segments == (3, 5)


async def test_the_end_of_a_document_is_cut_and_never_the_query(cross_encoder: House) -> None:
    for length, kept in ((9, b"abcd"), (6, b"a"), (-1, b"abcdef")):
        response = await rerank(
            cross_encoder, query="qq", documents=["abcdef"], truncate_prompt_tokens=length
        )
        assert response.status_code == 200, response.text
        asked = cross_encoder.engine.embedded[-1]
        assert asked.prompts == ((BOS, *b"qq", BOS, *kept, BOS),) and asked.second_segments == (4,)
    for body in (
        {"query": "qq", "truncate_prompt_tokens": 5},
        {"query": "q" * 600, "truncate_prompt_tokens": -1},
    ):
        error = error_of(await rerank(cross_encoder, **{"documents": ["abcdef"], **body}))
        assert error["param"] == "truncate_prompt_tokens" and "none of the document" in error["message"]
    error = error_of(await rerank(cross_encoder, documents=["a", "x" * 600]))
    assert (error["param"], error["code"]) == ("documents.1", "context_length_exceeded")
    assert (await rerank(cross_encoder, documents=["a", "x" * 508])).status_code == 200


async def test_what_a_cross_encoder_does_not_take(cross_encoder: House) -> None:
    error = error_of(await rerank(cross_encoder, instruction="Find it"))
    assert (error["param"], error["code"]) == ("instruction", "unsupported_parameter")
    error = error_of(await cross_encoder.chat())
    assert "an encoder" in error["message"] and "/v1/rerank" in error["message"]
    model = cross_encoder.state.model
    assert model is not None
    cross_encoder.state.model = replace(model, scoring=Scoring(reason="its classification head has 3 labels"))
    error = error_of(await rerank(cross_encoder))
    assert "3 labels" in error["message"] and "--classifier-from-token" not in error["message"]
    error = error_of(await cross_encoder.complete())
    assert "/v1/embeddings" in error["message"]


async def test_the_models_own_activation(cross_encoder: House) -> None:
    """The fake's logits are 0 here: a probability of a half, unless the score is the logit."""

    async def score(**body: Any) -> float:
        answer = (await cross_encoder.post("/v1/score", {"text_1": "a", "text_2": "b", **body})).json()
        return answer["data"][0]["score"]

    assert (await score(), await score(use_activation=False)) == (0.5, 0.0)
    model = cross_encoder.state.model
    assert model is not None
    cross_encoder.state.model = replace(model, scoring=Scoring((0,), as_logits=True))
    assert (await score(), await score(use_activation=True), await score(use_activation=False)) == (
        0.0,
        0.0,
        0.0,
    )


def test_what_makes_the_pairs_of_a_model(house: House) -> None:
    model = house.state.model
    assert model is not None
    encoder = replace(model.info, token_types=2)
    assert pair_form(None, model.tokenizer, encoder) == JoinedPairs(True)
    assert pair_form(None, model.tokenizer, replace(encoder, token_types=1)) == JoinedPairs(False)
    assert pair_form(None, model.tokenizer, replace(encoder, token_types=0)) is None
    assert isinstance(pair_form(ChatTemplate(ROLES, {}), model.tokenizer, encoder), TemplatePairs)
    tokenizer = ByteTokenizer()
    monkey = {**tokenizer.config, "model_input_names": ["input_ids", "attention_mask"]}
    tokenizer.config = monkey  # type: ignore[misc]
    assert pair_form(None, tokenizer, encoder) == JoinedPairs(False), "the model was trained without types"


@pytest.mark.parametrize("types", [[0, 1, 0, 1, 1], [0, 0, 0, 2, 2]])
def test_types_that_cannot_be_told_by_a_position_are_refused(house: House, types: list[int]) -> None:
    class Odd(ByteTokenizer):
        def encode_pair(self, first: str, second: str) -> PairEncoding:
            return replace(super().encode_pair(first, second), types=types)

    assert house.state.model is not None
    with pytest.raises(ConfigError, match=r"token types \[0, "):
        pair_form(None, Odd(), replace(house.state.model.info, token_types=3))


async def test_embeddings_in_lower_case_and_with_the_models_own_prompt(embedder: House) -> None:
    model = embedder.state.model
    assert model is not None
    prompts = EmbeddingPrompts({"query": "Q: ", "document": "D: "}, default="document")
    embedder.state.model = replace(
        model, prompts=prompts, pooling=DefaultPooling("last", declared=True, lower_case=True)
    )

    async def prompt(**body: Any) -> bytes:
        response = await embedder.post("/v1/embeddings", {"input": "Hi", **body})
        assert response.status_code == 200, response.text
        return bytes(embedder.engine.embedded[-1].prompts[0][1:])

    assert await prompt() == b"d: hi"
    assert await prompt(prompt_name="query") == b"q: hi"
    assert await prompt(prompt_name="") == b"hi"
    assert await prompt(input=[7, 65]) == bytes([65]), "token ids are taken as they are"
    await embedder.post("/v1/score", {"text_1": "A", "text_2": ["B"]})
    assert [bytes(one[1:]) for one in embedder.engine.embedded[-1].prompts] == [b"d: a", b"d: b"]
    left_out = replace(embedder.state.model.pooling, kind="mean", includes_prompt=False)
    embedder.state.model = replace(embedder.state.model, pooling=left_out)
    error = error_of(await embedder.post("/v1/embeddings", {"input": "Hi"}))
    assert error["param"] == "prompt_name" and "leaves it out of the mean" in error["message"]
    error = error_of(await embedder.post("/v1/score", {"text_1": "A", "text_2": ["B"]}))
    assert error["param"] == "model" and "leaves it out of the mean" in error["message"]
    assert await prompt(prompt_name="") == b"hi"
