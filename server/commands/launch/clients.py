"""What each agent needs to use a server: variables of its environment and arguments. No file of the user's is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

NO_KEY = "none"
"""Key for a server without keys: the clients refuse to start without one."""
_CODEX_KEY = "CODEX_COHORT_KEY"
_DEFAULT_CONTEXT = 8192
"""Tokens of context if the server does not say."""


@dataclass(frozen=True, slots=True)
class Target:
    """A model on a server. `url`: the server's address without /v1. `context`: tokens of the model's context."""

    url: str
    key: str | None
    model: str
    context: int | None

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

    def words(self, given: Sequence[str]) -> list[str]:
        """All arguments, the user's last."""
        flags = {word.partition("=")[0] for word in given}
        chosen = [(names[0], value) for names, value in self.options.items() if not flags & {*names}]
        return [*self.arguments, *(word for pair in chosen for word in pair), *given]


@dataclass(frozen=True, slots=True)
class Client:
    """An agent. `package`: its name on npm. `prompt_tokens`: tokens of the prompt with which it begins; None: not measured."""

    name: str
    package: str
    launch: Callable[[Target], Launch]
    prompt_tokens: int | None = None


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
            **models,
        },
        ("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
    )


def _codex(target: Target) -> Launch:
    provider = "model_providers.cohort"
    settings: dict[str, str | int] = {
        "model": target.model,
        "model_provider": "cohort",
        "model_context_window": target.context or _DEFAULT_CONTEXT,
        f"{provider}.name": "Cohort",
        f"{provider}.base_url": target.base,
        f"{provider}.wire_api": "responses",
        f"{provider}.env_key": _CODEX_KEY,
    }
    # Values are TOML, whose strings and integers are those of JSON.
    pairs = (("-c", f"{name}={json.dumps(value, ensure_ascii=False)}") for name, value in settings.items())
    return Launch(
        {_CODEX_KEY: target.key or NO_KEY}, arguments=tuple(word for pair in pairs for word in pair)
    )


def _opencode(target: Target) -> Launch:
    context = target.context or _DEFAULT_CONTEXT
    model = {"name": target.model, "tool_call": True, "limit": {"context": context, "output": context // 4}}
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
        },
        # A model and a kind of key in the user's settings would take precedence over the variables.
        options={("--auth-type",): "openai", ("--model", "-m"): target.model},
    )


CLIENTS = {
    client.name: client
    for client in (
        Client("claude", "@anthropic-ai/claude-code", _claude, 27_000),
        Client("codex", "@openai/codex", _codex, 9_000),
        Client("opencode", "opencode-ai", _opencode),
        Client("qwen", "@qwen-code/qwen-code", _qwen),
    )
}
