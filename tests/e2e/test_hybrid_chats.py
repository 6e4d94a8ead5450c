"""Chats of 4,000 tokens with tools, with a small Qwen3.5: what a turn, or a new conversation, has in common is found again.

The template decides what the prompt of a next turn has in common with this one: one keeps the reasoning of earlier turns, one
drops it as soon as the user asks again, and one has the system's words in the user's first message, so that no token ends what
a new conversation has in common. Layers with a state need a snapshot at the very place.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.checkpoints import VOCAB_SIZE, write_tokenizer
from tests.e2e.server_process import ServerProcess
from tests.executors.llm.models import SHAPES, write
from tests.server.templates.hybrid_shapes import QWEN_3_5, QWEN_3_6

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

ADMIN = {"Authorization": "Bearer boss"}
INTERVAL = 64
"""Tokens between two places where a snapshot can be."""
MOST = 0.1
"""Part of a prompt that may be computed."""
LETTERS = [ord(one) - 33 for one in string.ascii_lowercase]
"""Ids of these bytes: what the model writes is text that comes back as it was."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"It takes {name} in hand. " * 12,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
    for name in ("weather", "travel", "housing", "schools", "harbour", "museums")
]
RULES = "Answer in the words of the town's own archive. " * 24
WEATHER = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
}
JOINED = """\
{%- set first = namespace(text=messages[0].content + '\n' + (tools | tojson if tools else '') + '\n') %}
{%- for m in messages[1:] %}
    {{- '<|im_start|>' + ('assistant' if m.role == 'assistant' else 'user') + '\n' + first.text }}{%- set first.text = '' %}
    {%- if m.role == 'assistant' %}{{- '<think>\n' + m.reasoning_content + '</think>' }}{%- endif %}
    {{- m.content or '' }}
    {%- for c in m.tool_calls or [] %}
        {{- '<tool_call>\n<function=' + c.function.name + '>\n' }}
        {%- for k, v in c.function.arguments | items %}{{- '<parameter=' + k + '>\n' + v + '\n</parameter>\n' }}{%- endfor %}
        {{- '</function>\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}"""
TEMPLATES = {"keeps": QWEN_3_6, "drops": QWEN_3_5, "joins": JOINED}


@dataclass(frozen=True)
class Asked:
    """What one call took. `prefix`: its story's."""

    prompt: int
    cached: int
    reasoning: str
    prefix: dict[str, Any]

    @property
    def computed(self) -> float:
        """The part of the prompt that was computed."""
        return 1 - self.cached / self.prompt


@dataclass(frozen=True)
class Served:
    """A server with one of the templates."""

    server: ServerProcess
    template: str

    def chat(self, messages: list[dict[str, Any]], **more: Any) -> Asked:
        """Ask for an answer, and check that usage, story and metrics tell the same."""
        before = self.hits()
        variables = {"preserve_thinking": True} if self.template == "keeps" else {}
        body = {
            "model": "m", "messages": messages, "tools": TOOLS, "max_tokens": 40, "temperature": 0,
            "chat_template_kwargs": variables, "allowed_token_ids": LETTERS, **more,
        }  # fmt: skip
        response = self.server.post("/v1/chat/completions", body, timeout=120)
        assert response.status_code == 200, response.text
        answer = response.json()
        usage, [choice] = answer["usage"], answer["choices"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        story = self.story(response.headers["x-request-id"])
        assert story["cached_tokens"] == cached == self.hits() - before
        return Asked(usage["prompt_tokens"], cached, choice["message"]["reasoning_content"], story["prefix"])

    def message(self, system: list[dict[str, Any]], text: str) -> dict[str, int]:
        """The usage of a message in Anthropic's form."""
        body = {
            "model": "m",
            "max_tokens": 4,
            "system": system,
            "messages": [{"role": "user", "content": text}],
        }
        response = self.server.post("/v1/messages", body, timeout=120)
        assert response.status_code == 200, response.text
        usage: dict[str, int] = response.json()["usage"]
        return usage

    def hits(self) -> float:
        return self.server.metric("cohort_prefix_cache_hits_total")

    def story(self, request_id: str) -> dict[str, Any]:
        response = httpx.get(f"{self.server.url}/v1/requests/{request_id}", headers=ADMIN, timeout=30)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found


@pytest.fixture(scope="module", params=TEMPLATES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    # With one of them prompts are made in other processes than the engine's.
    more = ("--api-server-count", "2") if request.param == "joins" else ()
    with hybrid_server(tmp_path_factory.mktemp(request.param), request.param, *more) as server:
        yield Served(server, request.param)


def hybrid_server(folder: Path, template: str, *more: str) -> ServerProcess:
    """A server of a small Qwen3.5 with this template, not started yet."""
    kind, fields = SHAPES["qwen3.5"]
    fields = {**fields, "vocab_size": VOCAB_SIZE, "max_position_embeddings": 8192, "pad_token_id": 0}
    write(kind, fields, folder / "model", seed=3)
    write_tokenizer(folder / "model", TEMPLATES[template])
    args = [
        str(folder / "model"), "--served-model-name", "m", "--dtype", "float32", "--max-model-len", "8192",
        "--max-num-seqs", "2", "--admin-key", "boss", *more,
    ]  # fmt: skip
    return ServerProcess(args, folder)


def test_api_workers_show_what_one_process_shows(tmp_path: Path) -> None:
    """Of states, too, whose layout only the engine's process has."""
    answers = []
    for name, more in (("one", ()), ("several", ("--api-server-count", "2"))):
        folder = tmp_path / name
        folder.mkdir()
        with hybrid_server(folder, "keeps", *more) as server:
            shown = server.post("/api/show", {"model": "m"}).json()
            card = httpx.get(f"{server.url}/v1/executors", headers=ADMIN, timeout=30).json()["data"][0]
        states = card["kv_layout"]["state"]
        del shown["modified_at"]  # when the server was started
        assert shown["model_info"]["cohort.state.bytes_per_sequence"] == states["slot_bytes"] > 0
        assert shown["model_info"]["cohort.state.slots"] == states["num_slots"] >= 2
        assert shown["model_info"]["cohort.state.snapshot_interval"] == states["interval"] == INTERVAL
        answers.append(shown)
    assert answers[0] == answers[1]


@pytest.mark.long(every=3)
def test_turns_and_a_new_conversation(served: Served) -> None:
    """Each call from the second on computes at most a tenth of its prompt."""
    system = {"role": "system", "content": RULES}
    # Longer than an interval: the end of this prompt is of no use to a new conversation.
    messages: list[dict[str, Any]] = [system, {"role": "user", "content": "How is the weather in Rome? " * 6}]
    first = served.chat(messages)
    assert first.prompt > 4000 and first.cached == 0 and first.prefix["missed"] == "new"
    # The first turn goes on with a tool, the result of which the template shows as a user's.
    messages += [
        {"role": "assistant", "reasoning_content": first.reasoning, "content": None, "tool_calls": [WEATHER]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny in the morning."},
    ]
    called = served.chat(messages)
    assert called.computed <= MOST, called
    common = first.prompt
    for question in ("And the harbour of Ostia, is it open?", "Which museum is nearest?"):
        messages += [
            {"role": "assistant", "reasoning_content": called.reasoning, "content": "It is."},
            {"role": "user", "content": question},
        ]
        before, called = called, served.chat(messages)
        assert called.computed <= MOST, called
        # What was dropped is computed no more, and what was kept is found up to the end of the prompt before.
        common = common if served.template == "drops" else before.prompt
        assert called.cached > common - INTERVAL - len("<think>\n"), called
    for question in ("Where can one live in Ravenna?", "Are there schools?"):
        other = served.chat([system, {"role": "user", "content": question}])
        assert other.computed <= MOST, other
        assert other.prefix["missed"] in ("differs", None), "it was not for want of a snapshot"


@pytest.mark.long(every=3)
def test_a_story_names_the_snapshot_that_a_prompt_lacked(served: Served) -> None:
    """Prompts that part where none was to be expected: the first one leaves no snapshot there, the second one does."""
    answers = []
    for town in ("Ostia", "Pisa", "Siena"):
        system = {
            "role": "system",
            "content": f"Speak plainly. {'Be brief, and do not guess. ' * 40}This is {town}. {RULES}",
        }
        answers.append(served.chat([system, {"role": "user", "content": "Which town is this?"}]))
    _, parted, found = answers
    place = parted.prefix["matched_tokens"] + parted.prefix["evicted_tokens"]
    assert (parted.prefix["missed"], parted.prefix["evicted_by"], parted.prefix["window"]) == (
        "evicted",
        "state",
        None,
    )
    assert parted.cached == parted.prefix["matched_tokens"] < place
    assert place - INTERVAL < found.cached <= place, "the place that the story names"


@pytest.mark.long(every=3)
def test_a_marked_block_is_found_by_the_next_conversation(served: Served) -> None:
    """`cache_control` names the place before a second conversation comes, and `usage` tells what was kept."""

    def system(about: str, **mark: Any) -> list[dict[str, Any]]:
        common = {"type": "text", "text": f"{about} {RULES}", **mark}
        return [common, {"type": "text", "text": f"The reader asks for {about}. {RULES}"}]

    marked = {"cache_control": {"type": "ephemeral"}}
    for about, mark in (("boats", {}), ("trains", marked)):
        blocks = system(about, **mark)
        written = served.message(blocks, "What is there?")
        assert written["cache_read_input_tokens"] == 0
        blocks[1]["text"] = blocks[1]["text"].replace("The reader", "A child")
        read = served.message(blocks, "What is there?")
        kept = written["cache_creation_input_tokens"]
        assert read["cache_read_input_tokens"] == kept, "what was said to be kept"
        assert (kept > 1000) == bool(mark)
        assert kept + written["input_tokens"] == sum(
            read[name] for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        ) + len("The reader") - len("A child")
