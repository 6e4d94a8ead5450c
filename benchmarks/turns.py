"""What a turn of an agent's session costs, in three APIs: 20 turns with tools, a growing history, a billing header that changes.

    python -m benchmarks.turns [--rounds 3] [--turns 20] [--model FILE] [--json FILE]

The server is this checkout's, with the default model. In each round the same session runs in every API, turn by turn, beside two
measures of its new tokens, the part of a prompt that the prompt before did not have:

    ids      the whole prompt as token ids to /v1/completions, in a cache of its own: the same new tokens behind the same history
    alone    only the new tokens, as ids, behind nothing

`share` is how much of what a prompt has in common with the one before was found in the cache. A ratio is the time to the first
token divided by that of `ids` or of `alone` in the same turn and round; the table has medians over rounds. CPU is what the
server's process and the executor's take for a turn of four tokens, which other programs on the machine hardly change.

After the last turn the executor is killed and the session goes on: the time to the first token then has a restart and the
whole prompt in it, and the same prompt cold, as ids, tells how much of that is the prompt.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import secrets
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.attention import cpu_name
from benchmarks.peers import servers
from clients.event_stream import EventReader
from server.model_files import default_model
from tests.e2e.server_process import server_of
from tools.neutral_paths import neutral

Body = dict[str, Any]
CONTEXT = 8192
FIRST_WORDS, TOOLS, RESULT_WORDS = 1500, 8, 90
"""Words of the system prompt, tools, and words of a tool's result."""
OUTPUT = 4
"""Tokens of an answer: what is measured is the first."""
_WORDS = (
    "read write build test error line value function module import return index file path check the of a to and in is it "
    "that for with as on this from by at not are be or have an which one all if when there can so what out up into do"
).split()


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user asked, the call that the model made, what came of it, and how the model ended the turn before."""

    asked: str
    said: str
    path: str
    result: str
    answered: str


class Session:
    """The conversation of a session, and each API's form of its first turns. `mark` begins the system prompt: sessions with
    different marks share nothing. `words`, `tools`, `result`: of the system prompt, how many there are, and of a result."""

    def __init__(
        self,
        seed: int,
        turns: int,
        mark: str,
        words: int = FIRST_WORDS,
        tools: int = TOOLS,
        result: int = RESULT_WORDS,
    ) -> None:
        chosen = random.Random(seed)

        def text(count: int) -> str:
            return " ".join(chosen.choice(_WORDS) for _ in range(count)) + "."

        self.system = f"{mark} {text(words)}"
        self.tools = [(f"tool_{number}", text(40)) for number in range(tools)]
        self.turns = [
            Turn(text(25), text(12), f"src/{text(2)}", text(result), text(30)) for _ in range(turns)
        ]

    def header(self, turn: int) -> str:
        """The text that Claude Code puts before its system prompt, another one each time."""
        return f"x-anthropic-billing-header: cc_version=2.1.332; cch={turn:05x};"

    @staticmethod
    def schema() -> Body:
        properties = {
            "path": {"type": "string", "description": "Path of the file."},
            "line": {"type": "integer"},
        }
        return {"type": "object", "properties": properties, "required": ["path"]}

    def chat(self, count: int) -> Body:
        """Body of /v1/chat/completions for the first `count` turns, without the last answer."""
        messages: list[Body] = [{"role": "system", "content": f"{self.header(count)}\n{self.system}"}]
        for number, turn in enumerate(self.turns[:count]):
            call = {"name": "tool_0", "arguments": json.dumps({"path": turn.path})}
            messages += [
                {"role": "user", "content": turn.asked},
                {
                    "role": "assistant",
                    "content": turn.said,
                    "tool_calls": [{"id": f"call_{number}", "type": "function", "function": call}],
                },
                {"role": "tool", "tool_call_id": f"call_{number}", "content": turn.result},
                {"role": "assistant", "content": turn.answered},
            ]
        functions = [
            {"name": name, "description": about, "parameters": self.schema()} for name, about in self.tools
        ]
        tools = [{"type": "function", "function": function} for function in functions]
        return {"messages": messages[:-1], "tools": tools}

    def messages(self, count: int) -> Body:
        """Body of /v1/messages for the same."""
        messages: list[Body] = []
        for number, turn in enumerate(self.turns[:count]):
            call = {
                "type": "tool_use",
                "id": f"toolu_{number}",
                "name": "tool_0",
                "input": {"path": turn.path},
            }
            result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": turn.result}
            messages += [
                {"role": "user", "content": turn.asked},
                {"role": "assistant", "content": [{"type": "text", "text": turn.said}, call]},
                {"role": "user", "content": [result]},
                {"role": "assistant", "content": turn.answered},
            ]
        system = [{"type": "text", "text": self.header(count)}, {"type": "text", "text": self.system}]
        tools = [
            {"name": name, "description": about, "input_schema": self.schema()} for name, about in self.tools
        ]
        return {"system": system, "messages": messages[:-1], "tools": tools}

    def responses(self, count: int) -> Body:
        """Body of /v1/responses for the same."""
        items: list[Body] = []
        for number, turn in enumerate(self.turns[:count]):
            call = {
                "call_id": f"call_{number}",
                "name": "tool_0",
                "arguments": json.dumps({"path": turn.path}),
            }
            items += [
                {"role": "user", "content": turn.asked},
                {"role": "assistant", "content": turn.said},
                {"type": "function_call", **call},
                {"type": "function_call_output", "call_id": f"call_{number}", "output": turn.result},
                {"role": "assistant", "content": turn.answered},
            ]
        tools = [
            {"type": "function", "name": name, "description": about, "parameters": self.schema()}
            for name, about in self.tools
        ]
        return {"instructions": f"{self.header(count)}\n{self.system}", "input": items[:-1], "tools": tools}


@dataclass(frozen=True, slots=True)
class Asked:
    """Seconds to the first token, tokens of the prompt, and how many of them were cached."""

    ttft: float
    tokens: int
    cached: int


def cpu_seconds(pid: int) -> float:
    """CPU time of a process's living threads."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            total += int(path.read_text().split()[0])
    return total / 1e9


class Client:
    """One connection to the server, kept open. Its own work, encoding the body included, is before the clock starts."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=600)
        self.executor = self.server = 0
        self.find_processes()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def find_processes(self) -> None:
        """The executor, which may be another one by now, and its server."""
        [card] = self.call("/v1/executors")["data"]
        self.executor = int(card["pid"])
        self.server = server_of(self.executor)

    def cpu(self) -> tuple[float, float]:
        """Of the server's process and of the executor's, in seconds."""
        return cpu_seconds(self.server), cpu_seconds(self.executor)

    def stream(self, path: str, body: Body, is_first: Callable[[Body], bool]) -> tuple[float, list[Body]]:
        """Seconds until the first event that `is_first`, and all events. Raises RuntimeError for any status but 200."""
        data = json.dumps(body).encode()
        began = time.perf_counter()
        self._connection.request("POST", path, data, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {response.read()[:500]!r}")
        first, events, reader = None, [], EventReader()
        for line in iter(response.readline, b""):
            for event in reader.feed(line):
                events.append(json.loads(event))
                if first is None and is_first(events[-1]):
                    first = time.perf_counter() - began
        if first is None:
            raise RuntimeError(f"{path}: no token came: {events[-1:]}")
        return first, events

    def call(self, path: str, body: Body | None = None) -> Body:
        """A whole answer: of a POST if there is a body."""
        data = None if body is None else json.dumps(body).encode()
        self._connection.request(
            "GET" if body is None else "POST", path, data, {"Content-Type": "application/json"}
        )
        found: Body = json.loads(self._connection.getresponse().read())
        return found


def ask_chat(client: Client, session: Session, count: int) -> Asked:
    body = {**session.chat(count), "max_tokens": OUTPUT, "temperature": 0, "stream": True}

    def is_first(event: Body) -> bool:
        deltas = [one["delta"] for one in event["choices"]]
        ended = any(one["finish_reason"] for one in event["choices"])
        return ended or any(delta.get("content") or delta.get("tool_calls") for delta in deltas)

    seconds, events = client.stream(
        "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}, is_first
    )
    return _of_usage(seconds, events[-1]["usage"])


def ask_messages(client: Client, session: Session, count: int) -> Asked:
    body = {**session.messages(count), "model": MODEL, "max_tokens": OUTPUT, "temperature": 0, "stream": True}
    seconds, events = client.stream(
        "/v1/messages?beta=true",
        body,
        lambda event: event["type"] in ("content_block_delta", "message_delta"),
    )
    usage = next(event["usage"] for event in events if event["type"] == "message_delta")
    cached = usage["cache_read_input_tokens"]
    return Asked(seconds, cached + usage["input_tokens"], cached)


def ask_responses(client: Client, session: Session, count: int) -> Asked:
    body = {
        **session.responses(count),
        "max_output_tokens": OUTPUT,
        "temperature": 0,
        "stream": True,
        "store": False,
    }
    last = ("response.completed", "response.incomplete")
    seconds, events = client.stream(
        "/v1/responses", body, lambda event: event["type"].endswith(".delta") or event["type"] in last
    )
    usage = events[-1]["response"]["usage"]
    return Asked(seconds, usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"])


def ask_ids(client: Client, ids: Sequence[int], salt: str) -> Asked:
    """The prompt as token ids; `salt` names the cache in which it is looked up."""
    body = {"prompt": list(ids), "max_tokens": OUTPUT, "temperature": 0, "stream": True, "cache_salt": salt}
    seconds, events = client.stream(
        "/v1/completions",
        {**body, "stream_options": {"include_usage": True}},
        lambda event: any(one["text"] or one["finish_reason"] for one in event["choices"]),
    )
    return _of_usage(seconds, events[-1]["usage"])


def _of_usage(seconds: float, usage: Body) -> Asked:
    return Asked(seconds, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])


MODEL = "bench"
APIS: dict[str, Callable[[Client, Session, int], Asked]] = {
    "chat": ask_chat,
    "messages": ask_messages,
    "responses": ask_responses,
}


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens that both begin with."""
    return next(
        (index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )


def run_round(client: Client, number: int, turns: int) -> Iterator[dict[str, Any]]:
    """One session in each API, turn by turn; what each turn took. Turns count from 1."""
    sessions = {name: Session(0, turns, f"{name}, round {number}.") for name in APIS}
    plain, salt = Session(0, turns, f"ids, round {number}."), secrets.token_hex(8)
    before: dict[str, list[int]] = {}
    for turn in range(1, turns + 1):
        ids = {
            name: client.call("/tokenize", session.chat(turn))["tokens"]
            for name, session in {**sessions, "ids": plain}.items()
        }
        shared = {name: common(before[name], ids[name]) if before else 0 for name in ids}
        found: dict[str, Any] = {
            "turn": turn,
            "tokens": len(ids["ids"]),
            "new": len(ids["ids"]) - shared["ids"],
        }
        new = ids["ids"][shared["ids"] :]
        order = [*APIS, "ids", "alone"]
        # What comes first in one round comes later in the next.
        for name in order[number % len(order) :] + order[: number % len(order)]:
            began = client.cpu()
            if name == "alone":
                asked = ask_ids(client, new, secrets.token_hex(8))
            elif name == "ids":
                asked = ask_ids(client, ids["ids"], salt)
            else:
                asked = APIS[name](client, sessions[name], turn)
            server, executor = (after - then for after, then in zip(client.cpu(), began, strict=True))
            if name in APIS and asked.tokens != len(ids[name]):
                raise RuntimeError(f"{name}, turn {turn}: {asked.tokens} tokens, as a chat {len(ids[name])}")
            found[name] = {
                "ttft": asked.ttft,
                "cached": asked.cached,
                "server_cpu": server,
                "executor_cpu": executor,
            }
            if turn > 1 and name != "alone":
                found[name]["share"] = asked.cached / shared[name]
        before = ids
        yield found


def after_a_kill(client: Client, turns: int) -> dict[str, float]:
    """The executor is killed behind a session: seconds to the first token of its next turn, and of the same prompt cold."""
    session = Session(1, turns, "killed.")
    ask_chat(client, session, turns - 1)
    warm = ask_chat(client, session, turns)
    os.kill(client.executor, signal.SIGKILL)
    killed = ask_chat(client, session, turns)
    ids = client.call("/tokenize", session.chat(turns))["tokens"]
    cold = statistics.median(ask_ids(client, ids, secrets.token_hex(8)).ttft for _ in range(3))
    return {
        "tokens": killed.tokens,
        "warm_s": warm.ttft,
        "killed_s": killed.ttft,
        "prefill_s": cold,
        "restart_s": killed.ttft - cold,
    }


def summary(rounds: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Medians over rounds for each turn from the second on, and the worst and the median turn of each API."""
    by_turn = [list(same) for same in zip(*rounds, strict=True)][1:]
    found: dict[str, Any] = {}
    for name in [*APIS, "ids"]:
        behind = [
            statistics.median(one[name]["ttft"] / one["ids"]["ttft"] for one in same) for same in by_turn
        ]
        alone = [
            statistics.median(one[name]["ttft"] / one["alone"]["ttft"] for one in same) for same in by_turn
        ]
        found[name] = {
            "share_min": min(one[name]["share"] for same in by_turn for one in same),
            "ttft_ms": 1000 * statistics.median(one[name]["ttft"] for same in by_turn for one in same),
            "ratio_ids": statistics.median(behind),
            "ratio_ids_worst": max(behind),
            "ratio_alone": statistics.median(alone),
            "ratio_alone_worst": max(alone),
            **{
                f"{part}_cpu_ms": 1000
                * statistics.median(one[name][f"{part}_cpu"] for same in by_turn for one in same)
                for part in ("server", "executor")
            },
        }
    every = [one for same in by_turn for one in same]
    found["alone_ms"] = 1000 * statistics.median(one["alone"]["ttft"] for one in every)
    found["new_tokens"] = statistics.median(one["new"] for one in every)
    return found


def show(found: dict[str, Any], last: int) -> None:
    """The table."""
    print(f"turns 2 to the last; prompts of up to {last} tokens, {found['new_tokens']:g} new in a turn")
    heads = ("share", "TTFT ms", "/ ids", "worst", "/ alone", "worst", "server CPU ms", "executor CPU ms")
    print(" " * 10, *(f"{head:>{max(7, len(head))}}" for head in heads))
    for name in [*APIS, "ids"]:
        one = found[name]
        figures = (
            f"{100 * one['share_min']:.1f}%", f"{one['ttft_ms']:.1f}", f"{one['ratio_ids']:.2f}", f"{one['ratio_ids_worst']:.2f}",
            f"{one['ratio_alone']:.2f}", f"{one['ratio_alone_worst']:.2f}", f"{one['server_cpu_ms']:.1f}",
            f"{one['executor_cpu_ms']:.1f}",
        )  # fmt: skip
        cells = (f"{figure:>{max(7, len(head))}}" for head, figure in zip(heads, figures, strict=True))
        print(f"{name:10}", *cells)
    print(f"{'alone':10} {'':7} {found['alone_ms']:7.1f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--model", type=Path, help="another model than the default one")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    model = arguments.model or default_model.find()
    if model is None:
        sys.exit("the default model is not on this disk: run `cohort fetch-default`")
    command = [
        sys.executable, "-m", "server.cli", "serve", "{model}", "--port", "{port}", "--max-model-len", "{context}",
        "--served-model-name", MODEL, "--log-level", "warning",
    ]  # fmt: skip
    side, log = servers.Side("cohort", command, "/ready"), Path(".reports/turns.log")
    log.parent.mkdir(exist_ok=True)
    with servers.serving(side, model, log, servers.Room(4, CONTEXT)) as (url, _):
        client = Client(url)
        for _ in run_round(client, -1, 3):  # threads, caches and code settle
            pass
        rounds = [list(run_round(client, number, arguments.turns)) for number in range(arguments.rounds)]
        found = summary(rounds)
        show(found, rounds[0][-1]["tokens"])
        killed = after_a_kill(client, arguments.turns)
        client.close()
    print(
        f"executor killed behind {killed['tokens']} tokens: first token after {killed['killed_s']:.2f} s, of which the prompt "
        f"takes {killed['prefill_s']:.2f} s; {1000 * killed['warm_s']:.0f} ms with it alive"
    )
    result = {
        "model": model.name, "cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), "turns": arguments.turns,
        "summary": found, "killed": killed, "rounds": rounds,
    }  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps(neutral(result), indent=1) + "\n")


if __name__ == "__main__":
    main()
