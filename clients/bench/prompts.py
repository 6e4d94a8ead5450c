"""What `cohort bench` sends: random prompts that the server at hand understands.

Lists of token ids need no tokenizer on this side and have exactly the length asked for. Which ids a model has is found out
in this order, and the first that a trial request shows to work is taken:

1. `--vocab-size` tells it.
2. `GET /v1/executors` does (Cohort's own).
3. It is large: ids of 1,000 to 99,999, which the usual vocabularies have.
4. `POST /tokenize` turns words into ids, from which prompts are drawn (vLLM's and llama.cpp's form).
5. Prompts are texts of random words, as many as make about the right number of tokens by the server's own count.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from clients.bench.stream import CompletionReader
from clients.bench.workloads import Workload
from clients.http import BenchFault, Broken, Client, Refused

FIRST_ID, END_ID = 1_000, 100_000
"""Ids of a large vocabulary: past its bytes and special tokens, and below the end of most."""
WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work government number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city community name president team minute idea body back parent face others level office "
    "door health person art war history party result change morning reason research girl guy moment air teacher force order"
).split()
_FEW = 32
"""Fewer ids than this would make prompts that repeat themselves."""
_TRIAL_WORDS = 64

Prompt = list[int] | str


class Prompts(Protocol):
    """A way to make prompts."""

    @property
    def about(self) -> dict[str, Any]:
        """For the report."""

    def draw(self, rng: random.Random, tokens: int) -> Prompt:
        """A random prompt of so many tokens."""


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ids of `low` to `high` - 1."""

    low: int
    high: int
    source: str = "default"

    @classmethod
    def of(cls, vocab_size: int, source: str) -> IdRange:
        """The usual range as far as the vocabulary goes, without its beginning, where bytes and special tokens are."""
        return cls(min(FIRST_ID, vocab_size // 8), min(END_ID, vocab_size), source)

    @property
    def about(self) -> dict[str, Any]:
        return {"form": "token ids", "low": self.low, "high": self.high - 1, "source": self.source}

    def draw(self, rng: random.Random, tokens: int) -> Prompt:
        return [rng.randrange(self.low, self.high) for _ in range(tokens)]


@dataclass(frozen=True, slots=True)
class KnownIds:
    """Ids that the server's tokenizer made of words."""

    ids: Sequence[int]

    @property
    def about(self) -> dict[str, Any]:
        return {"form": "token ids", "ids": len(self.ids), "source": "/tokenize"}

    def draw(self, rng: random.Random, tokens: int) -> Prompt:
        return rng.choices(self.ids, k=tokens)


@dataclass(frozen=True, slots=True)
class Words:
    """Texts. Their length in tokens is about right; the report has the server's count."""

    tokens_per_word: float

    @property
    def about(self) -> dict[str, Any]:
        return {"form": "text", "tokens_per_word": round(self.tokens_per_word, 3), "source": "words"}

    def draw(self, rng: random.Random, tokens: int) -> Prompt:
        return " ".join(rng.choices(WORDS, k=max(1, round(tokens / self.tokens_per_word))))


def join(shared: Prompt, own: Prompt) -> Prompt:
    """One prompt of two, of which the first may be empty."""
    if isinstance(shared, list) and isinstance(own, list):
        return shared + own
    return f"{shared} {own}" if shared else own


def body(model: str, prompt: Prompt, output_tokens: int) -> dict[str, Any]:
    """One request. Greedy: what a server's sampler costs beyond that is not measured."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def requests(
    client: Client, model: str, prompts: Prompts, workload: Workload, seed: int, run: int
) -> list[bytes]:
    """The whole requests of one run. No two runs and no two workloads share a prompt: the server's prefix cache would
    know it."""
    rng = random.Random(f"{seed}/{workload.name}/{run}")
    shared: Prompt = prompts.draw(rng, workload.shared_tokens) if workload.shared_tokens else []
    messages = []
    for _ in range(workload.requests):
        own = prompts.draw(rng, workload.prompt_tokens)
        prompt = join(shared, own) if shared else own
        messages.append(
            client.message("POST", "/v1/completions", body(model, prompt, workload.output_tokens))
        )
    return messages


async def find(client: Client, model: str, vocab_size: int | None, vocab_told: int | None) -> Prompts:
    """The first way that works. `vocab_told` is what the server says of its vocabulary.

    Raises BenchFault where none does, or where the server cannot be measured like this; Broken and OSError.
    """
    if vocab_size is not None:
        first = IdRange.of(vocab_size, "--vocab-size")
        if (refused := await _try(client, model, first)) is not None:
            raise await _verdict(client, model, first, refused)
        return first
    first = IdRange.of(vocab_told, "/v1/executors") if vocab_told else IdRange(FIRST_ID, END_ID)
    if (refused := await _try(client, model, first)) is None:
        return first
    if refused.status in (401, 403, 404) or refused.status >= 502:
        raise _fault(client, refused)
    if len(ids := await _tokenized(client, model)) >= _FEW:
        ids_of_server = KnownIds(ids)
        if await _try(client, model, ids_of_server) is None:
            return ids_of_server
    if (refused := await _try(client, model, Words(1.0))) is not None:
        raise await _verdict(client, model, Words(1.0), refused)
    return Words(await _tokens_per_word(client, model))


async def _try(client: Client, model: str, prompts: Prompts) -> Refused | None:
    """Ask for one token after a prompt that has the range's last id in it."""
    prompt = prompts.draw(random.Random(0), 8)
    if isinstance(prompts, IdRange):
        prompt = [prompts.low, prompts.high - 1]
    return await _ask(client, body(model, prompt, 1))


async def _ask(
    client: Client, request: dict[str, Any], reader: CompletionReader | None = None
) -> Refused | None:
    """The refusal, or None. An error in the stream is one, too."""
    reader = reader or CompletionReader()
    connection = await client.connect()
    try:
        await connection.exchange(client.message("POST", "/v1/completions", request), reader.feed)
    except Refused as refused:
        return refused
    finally:
        connection.close()
    result = reader.result(0.0)
    return Refused(400, result.encode()) if isinstance(result, str) else None


async def _verdict(client: Client, model: str, prompts: Prompts, refused: Refused) -> BenchFault:
    """What is wrong: most of all whether it is `ignore_eos`, without which answers have any length."""
    request = body(model, prompts.draw(random.Random(0), 8), 1)
    del request["ignore_eos"]
    if refused.status in (400, 422) and await _ask(client, request) is None:
        return BenchFault(
            f"{client.url} refuses `ignore_eos` ({refused}): answers would end anywhere, and no two runs could be compared"
        )
    return _fault(client, refused)


def _fault(client: Client, refused: Refused) -> BenchFault:
    hint = "; give the key with --api-key" if refused.status == 401 else ""
    return BenchFault(f"{client.url} refuses a completion: {refused}{hint}")


async def _tokenized(client: Client, model: str) -> list[int]:
    """Different ids that the server's tokenizer makes of words; none where it has no such route."""
    text = " ".join(WORDS)
    for request in ({"model": model, "prompt": text, "add_special_tokens": False}, {"content": text}):
        try:
            answer = await client.ask("POST", "/tokenize", request)
        except (Refused, Broken):
            continue
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        if isinstance(tokens, list) and tokens and all(isinstance(one, int) for one in tokens):
            return sorted(set(tokens))
    return []


async def _tokens_per_word(client: Client, model: str) -> float:
    """By the server's own count of a text; 1.3, as of English, where it does not count."""
    reader = CompletionReader()
    text = Words(1.0).draw(random.Random(1), _TRIAL_WORDS)
    await _ask(client, body(model, text, 1), reader)
    result = reader.result(0.0)
    if isinstance(result, str) or result.prompt_tokens is None:
        return 1.3
    return result.prompt_tokens / _TRIAL_WORDS
