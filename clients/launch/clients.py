"""What each agent needs to use a server: variables of its environment and arguments. No file of the user's is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

NO_KEY = "none"
"""Key for a server without keys: the clients refuse to start without one."""
_CODEX_KEY = "CODEX_COHORT_KEY"
_MOST_OUTPUT = 32_000
"""Tokens of an answer that Claude Code, OpenCode and Qwen Code ask for where nothing limits them."""


@dataclass(frozen=True, slots=True)
class Target:
    """A model on a server. `url`: the server's address without /v1. `context`: tokens of the model's context. `output`: tokens
    that an answer may have. Both None: not known."""

    url: str
    key: str | None
    model: str
    context: int | None
    output: int | None = None

    @property
    def base(self) -> str:
        """The base URL of OpenAI's API."""
        return f"{self.url}/v1"


@dataclass(frozen=True, slots=True)
class Launch:
    """What a client is started with besides the user's arguments. `removed`: variables that would lead it to another server, or
    send the key for another server to this one. `options`: values of options, by the names of each, of which the first is used;
    they are left out where the user's arguments have them, since not every client takes an option twice."""

    variables: Mapping[str, str]
    removed: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    options: Mapping[tuple[str, ...], str] = field(default_factory=dict)

    def words(self, arguments: Sequence[str]) -> list[str]:
        """All arguments, the user's last."""
        flags = {word.partition("=")[0] for word in arguments}
        chosen = [(names[0], value) for names, value in self.options.items() if not flags & {*names}]
        return [*self.arguments, *(word for pair in chosen for word in pair), *arguments]


@dataclass(frozen=True, slots=True)
class Client:
    """An agent. `package`: its name on npm. `prompt_tokens`: tokens of SmolLM2 in the prompt with which it begins, measured with
    the versions that tests/agents pins (tests/agents/recorded/first_prompts.json). `known_name_tokens`: of its prompt for a model
    whose name it knows, if that is another one. `compacts_at`: from a context and the limit for answers to the tokens of a
    conversation at which the client shortens it, or refuses to go on."""

    name: str
    package: str
    launch: Callable[[Target], Launch]
    prompt_tokens: int
    compacts_at: Callable[[int, int], int]
    known_name_tokens: int | None = None

    def first_prompt(self, model: str) -> int:
        """Tokens of SmolLM2 in its first prompt for a model of this name."""
        if self.known_name_tokens is not None and model.startswith("claude-"):
            return self.known_name_tokens
        return self.prompt_tokens


def _claude(target: Target) -> Launch:
    models = dict.fromkeys(
        (
            "ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL",
        ),
        target.model,
    )  # fmt: skip
    return Launch(
        {
            "ANTHROPIC_BASE_URL": target.url,
            "ANTHROPIC_AUTH_TOKEN": target.key or NO_KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            # It takes a model that it does not know for one with a million tokens of context, and would never compact.
            **_numbers(
                CLAUDE_CODE_MAX_CONTEXT_TOKENS=target.context, CLAUDE_CODE_MAX_OUTPUT_TOKENS=target.output
            ),
            **models,
        },
        ("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
    )


def _codex(target: Target) -> Launch:
    provider = "model_providers.cohort"
    settings: dict[str, str | int] = {
        "model": target.model,
        "model_provider": "cohort",
        f"{provider}.name": "Cohort",
        f"{provider}.base_url": target.base,
        f"{provider}.wire_api": "responses",
        f"{provider}.env_key": _CODEX_KEY,
    }
    if target.context is not None:
        settings["model_context_window"] = target.context
        if target.output is not None:
            # It sets no limit to an answer, and compacts at nine tenths of the context if this is more.
            settings["model_auto_compact_token_limit"] = target.context - target.output
    # Values are TOML, whose strings and integers are those of JSON.
    pairs = (("-c", f"{name}={json.dumps(value, ensure_ascii=False)}") for name, value in settings.items())
    return Launch(
        {_CODEX_KEY: target.key or NO_KEY}, arguments=tuple(word for pair in pairs for word in pair)
    )


def _opencode(target: Target) -> Launch:
    model: dict[str, object] = {"name": target.model, "tool_call": True}
    if target.context is not None:
        # It compacts once a conversation is longer than `context` less `output`.
        model["limit"] = {"context": target.context, "output": target.output or target.context // 4}
    config = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {
            "cohort": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Cohort",
                "options": {"baseURL": target.base, "apiKey": target.key or NO_KEY},
                "models": {target.model: model},
            }
        },
        "model": f"cohort/{target.model}",
        "small_model": f"cohort/{target.model}",
        "autoupdate": False,
        "share": "disabled",
    }
    return Launch({"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def _qwen(target: Target) -> Launch:
    return Launch(
        {
            "OPENAI_BASE_URL": target.base,
            "OPENAI_API_KEY": target.key or NO_KEY,
            "OPENAI_MODEL": target.model,
            # It asks for so many tokens in each turn, and the server refuses a prompt that leaves no room for them.
            **_numbers(QWEN_CODE_MAX_OUTPUT_TOKENS=target.output),
        },
        # A model and a kind of key in the user's settings would take precedence over the variables.
        options={("--auth-type",): "openai", ("--model", "-m"): target.model},
    )


def _numbers(**values: int | None) -> dict[str, str]:
    """Variables with these values, without those that are not known."""
    return {name: str(value) for name, value in values.items() if value is not None}


def output_limit(room: int) -> int:
    """Tokens of an answer where `room` is left behind the first prompt: two thirds are for what the agent reads."""
    return min(_MOST_OUTPUT, max(1, room // 3))


CLIENTS = {
    client.name: client
    for client in (
        # The prompt of an interactive session, which is longer than that of `-p`; to models named claude-* it sends more.
        # Measured: with 4,000 tokens behind its prompt it compacts at once and loses the question, with 6,000 it works.
        Client(
            "claude", "@anthropic-ai/claude-code", _claude, 13_900,
            lambda context, output: context - output - 3_000, known_name_tokens=22_300,
        ),
        # Nine tenths of the context at most: codex-rs/protocol/src/openai_models.rs, auto_compact_token_limit.
        Client(
            "codex", "@openai/codex", _codex, 8_900,
            lambda context, output: min(context * 9 // 10, context - output),
        ),
        # packages/opencode/src/session/overflow.ts
        Client("opencode", "opencode-ai", _opencode, 7_700, lambda context, output: context - output),
        # It knows nothing of the context: the server refuses what is longer.
        Client("qwen", "@qwen-code/qwen-code", _qwen, 18_300, lambda context, output: context - output),
    )
}  # fmt: skip
