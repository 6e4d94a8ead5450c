"""The tables of docs/clients.md, with the versions that the checks install: `python -m tests.clients.page write|check`"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers import install as vllm
from tests.clients.environments import ENVIRONMENTS, ROOT
from tests.clients.node_environment import AI_SDK
from tools.generated_page import run, with_parts

PAGE = ROOT / "docs/clients.md"
COLUMNS = ("chat", "stream", "tools", "forced", "structured", "embeddings")
"""`forced`: a forced call beside a format of the answer, in one request."""
ALL = "chat stream tools forced structured embeddings"
_AGENTS = {
    "Claude Code": ("claude", "@anthropic-ai/claude-code"),
    "Codex": ("codex", "@openai/codex"),
    "OpenCode": ("opencode", "opencode-ai"),
    "Qwen Code": ("qwen", "@qwen-code/qwen-code"),
}
"""Agents, with the folders and the packages of `tests/agents/packages`."""


@dataclass(frozen=True)
class Row:
    """A client of the page. `suite`: its name for `make test-external ONLY=clients`. `package`: the one whose version is shown.
    `tested`: the columns that have a check."""

    title: str
    suite: str
    package: str
    tested: str
    difference: str = "none"


ROWS = (
    Row("OpenAI SDK for Python, 3", "openai-3", "openai", ALL),
    Row("OpenAI SDK for Python, 2", "openai-2", "openai", ALL),
    Row("OpenAI SDK for Python, 1", "openai-1", "openai", ALL),
    Row("Anthropic SDK for Python", "anthropic", "anthropic", "chat stream tools forced structured"),
    Row("Anthropic SDK for Python, 0", "anthropic-0", "anthropic", "chat stream tools forced structured"),
    Row("LangChain, ChatOpenAI", "langchain", "langchain-openai", ALL,
        "`OpenAIEmbeddings` needs `check_embedding_ctx_length=False`: it sends ids of OpenAI's tokenizer otherwise"),
    Row("LangChain, ChatOllama", "langchain", "langchain-ollama", "chat stream tools structured embeddings"),
    Row("LiteLLM, `openai` and `hosted_vllm`", "litellm", "litellm", ALL),
    Row("LiteLLM, `ollama` and `ollama_chat`", "litellm", "litellm", "chat stream tools structured embeddings",
        "its embeddings carry no key: a server with `--api-key` answers 401; `hosted_vllm` sends it"),
    Row("OpenAI Agents SDK, chat and Responses", "openai-agents", "openai-agents", "chat stream tools forced structured"),
    Row("Pydantic AI, chat and Responses", "pydantic-ai", "pydantic-ai-slim", ALL),
    Row("Instructor", "instructor", "instructor", "chat stream tools structured",
        "`Mode.MD_JSON` asks in the prompt alone, and nothing enforces it"),
    Row("LlamaIndex, OpenAILike", "llama-index", "llama-index-llms-openai-like", ALL),
    Row("LlamaIndex, Ollama", "llama-index", "llama-index-llms-ollama", "chat stream tools structured"),
    Row("Haystack", "haystack", "haystack-ai", ALL,
        "beside a format its SDK takes strict functions alone: `tools_strict=True`"),
    Row("DSPy, `openai` and `hosted_vllm`", "dspy", "dspy", "chat tools forced structured embeddings"),
    Row("Mistral's SDK for Python", "mistralai", "mistralai", ALL,
        "a streamed call fails in the SDK, which expects one piece; for `fim` use [completions](api.md#post-v1completions)"),
    Row("Ollama's package for Python", "ollama", "ollama", "chat stream tools structured embeddings"),
    Row("AI SDK, `openai-compatible`", "ai-sdk", "@ai-sdk/openai-compatible", ALL,
        "a call of one named function ends with `stop`, as with OpenAI: beside `output`, `generateText` finds no object"),
    Row("AI SDK, `openai`, chat and Responses", "ai-sdk", "@ai-sdk/openai", ALL, "the same, in chat"),
    Row("AI SDK, Ollama", "ai-sdk", "ollama-ai-provider-v2", ALL),
    Row("Ollama's package for JavaScript", "ai-sdk", "ollama", "chat stream tools structured embeddings"),
    Row("lm-eval", "lm-eval", "lm_eval", "chat"),
    Row("guidellm", "guidellm", "guidellm", "chat stream tools embeddings"),
    Row("vllm bench serve", "vllm-bench", "vllm", "chat stream embeddings"),
)  # fmt: skip
"""Clients that `make test-external ONLY=clients` runs, in the page's order."""


def version(row: Row) -> str:
    """The version that the row's checks install. Raises KeyError if its list has no such package."""
    if row.suite == "vllm-bench":
        return vllm.VERSION
    if row.suite == AI_SDK.name:
        return AI_SDK.wants[row.package]
    listed = ROOT / "constraints.txt" if row.suite == "openai-3" else ENVIRONMENTS[row.suite].requirements
    versions = dict(re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==(\S+)", listed.read_text("utf-8"), re.M))
    return versions[row.package]


def clients() -> str:
    """The table of `ROWS`."""
    lines = [
        f"| client | version | {' | '.join(COLUMNS)} | difference |",
        "|---|---|" + "---|" * (len(COLUMNS) + 1),
    ]
    for row in ROWS:
        marks = " | ".join("✓" if one in row.tested.split() else "" for one in COLUMNS)
        lines.append(f"| {row.title} | {row.package} {version(row)} | {marks} | {row.difference} |")
    return "\n".join(lines)


def agents() -> str:
    """The table of agents."""
    lines = ["| agent | version |", "|---|---|"]
    for title, (folder, package) in _AGENTS.items():
        listed = json.loads((ROOT / "tests/agents/packages" / folder / "package.json").read_text("utf-8"))
        lines.append(f"| {title} | {package} {listed['dependencies'][package]} |")
    return "\n".join(lines)


def with_tables(page: str) -> str:
    """The page with both tables written anew. Raises ValueError if markers are missing."""
    return with_parts(page, {"clients": clients(), "agents": agents()})


def main(argv: Sequence[str]) -> int:
    """Write the tables into the page, or say that they are stale (exit code 1)."""
    return run("tests.clients.page", argv, PAGE, with_tables)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
