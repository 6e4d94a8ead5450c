"""The coding agents that the tests run: which version, how each is pointed at a server, and what it is started with."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = Path(__file__).with_name("packages")
FOLDER = ROOT / ".reports/agents"
ARCHITECTURE = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), "x64")
QUIET = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TZ": "Etc/UTC",
    "DO_NOT_TRACK": "1",
    # Nothing but the server can be reached, whatever a client would like to tell its makers.
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}
"""The whole environment of a client, but for its own variables and HOME: nothing of the caller's reaches it."""


@dataclass(frozen=True)
class Agent:
    """`program`: its path below node_modules, with {arch} for the machine's. `node`: it is a script for the node beside it.
    `files`: what lies in its home, by path, from the server's URL. `reads`: the call of its own tool that reads the file at a
    path. `path`: of the API that it speaks. `overlong`: part of what it prints about a prompt that does not fit the context."""

    name: str
    package: str
    program: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    path: str
    overlong: str
    reads: Callable[[str], dict[str, Any]]
    files: Callable[[str], dict[str, str]] = lambda url: {}
    node: bool = False

    @property
    def version(self) -> str:
        """The version that its package.json pins."""
        manifest = json.loads((PACKAGES / self.name / "package.json").read_text("utf-8"))
        version: str = manifest["dependencies"][self.package]
        return version

    @property
    def folder(self) -> Path:
        return FOLDER / f"{self.name}-{self.version}"

    def ensure(self) -> Path:
        """Install what the lock file lists, unless that was done. Scripts of packages do not run. Raises CalledProcessError."""
        lock = (PACKAGES / self.name / "package-lock.json").read_text("utf-8")
        stamp = self.folder / ".installed"
        if not (stamp.exists() and stamp.read_text("utf-8") == lock):
            shutil.rmtree(self.folder, ignore_errors=True)
            shutil.copytree(PACKAGES / self.name, self.folder)
            # Not `npm ci`: it insists on packages for other machines, which some mirrors lack.
            command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
            subprocess.run(command, cwd=self.folder, check=True)
            stamp.write_text(lock, "utf-8")
        return self.folder / "node_modules"

    def command(self, prompt: str) -> list[str]:
        """What asks the client for one thing and ends with its answer."""
        modules = self.ensure()
        program = [str(modules / self.program.format(arch=ARCHITECTURE))]
        if self.node:
            program.insert(0, str(modules / f"node-linux-{ARCHITECTURE}/bin/node"))
        return [*program, *(one.format(prompt=prompt) for one in self.arguments)]

    def environment(self, url: str, home: Path) -> dict[str, str]:
        """For a server at `url`; writes the files into `home`."""
        for path, text in self.files(url).items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(text, "utf-8")
        return {
            **QUIET,
            "HOME": str(home),
            **{name: value.format(url=url) for name, value in self.variables.items()},
        }


def _codex_config(url: str) -> dict[str, str]:
    return {
        ".codex/config.toml": (
            'model = "scripted"\nmodel_provider = "cohort"\nmodel_context_window = 200000\n'
            "check_for_update_on_startup = false\n[analytics]\nenabled = false\n[feedback]\nenabled = false\n"
            f'[model_providers.cohort]\nname = "Cohort"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
            # Each waits longer than the one before.
            "stream_max_retries = 2\nrequest_max_retries = 2\n"
        )
    }


def _opencode_config(url: str) -> dict[str, str]:
    config = {
        "model": "cohort/scripted",
        "small_model": "cohort/scripted",
        "autoupdate": False,
        "share": "disabled",
        "permission": "allow",
        "provider": {
            "cohort": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Cohort",
                "options": {"baseURL": f"{url}/v1", "apiKey": "any"},
                "models": {"scripted": {"name": "scripted", "limit": {"context": 200000, "output": 8192}}},
            }
        },
    }
    return {".config/opencode/opencode.json": json.dumps(config)}


def _qwen_config(url: str) -> dict[str, str]:
    config = {
        "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "security": {"auth": {"selectedType": "openai"}},
    }
    return {".qwen/settings.json": json.dumps(config)}


AGENTS = {
    one.name: one
    for one in (
        Agent(
            "codex",
            "@openai/codex",
            "@openai/codex-linux-{arch}/vendor/x86_64-unknown-linux-musl/bin/codex",
            ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "{prompt}"),
            {},
            "/v1/responses",
            "ran out of room in the model's context window",
            lambda path: {"name": "exec_command", "arguments": {"cmd": f"cat {path}"}},
            _codex_config,
        ),
        Agent(
            "claude",
            "@anthropic-ai/claude-code",
            "@anthropic-ai/claude-code-linux-{arch}/claude",
            ("-p", "{prompt}", "--allowedTools", "Read", "--model", "claude-sonnet-4-5"),
            {
                "ANTHROPIC_BASE_URL": "{url}",
                "ANTHROPIC_AUTH_TOKEN": "any",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
                "DISABLE_TELEMETRY": "1",
            },
            "/v1/messages",
            "Prompt is too long",
            lambda path: {"name": "Read", "arguments": {"file_path": path}},
        ),
        Agent(
            "opencode",
            "opencode-ai",
            "opencode-linux-{arch}/bin/opencode",
            ("run", "{prompt}"),
            {
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            },
            "/v1/chat/completions",
            "maximum context length is 4000 tokens",
            lambda path: {"name": "read", "arguments": {"filePath": path}},
            _opencode_config,
        ),
        Agent(
            "qwen",
            "@qwen-code/qwen-code",
            "@qwen-code/qwen-code/cli-entry.js",
            ("-y", "{prompt}"),
            {
                "OPENAI_BASE_URL": "{url}/v1",
                "OPENAI_API_KEY": "any",
                "OPENAI_MODEL": "scripted",
                "QWEN_CODE_MAX_OUTPUT_TOKENS": "8192",
            },
            "/v1/chat/completions",
            "maximum context length is 4000 tokens",
            lambda path: {"name": "read_file", "arguments": {"file_path": path}},
            _qwen_config,
            node=True,
        ),
    )
}
