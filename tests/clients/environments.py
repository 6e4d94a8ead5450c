"""An environment per client below `.reports/clients/`, from a list of every version in it (`requirements/NAME.txt`).

`python -m tests.clients.environments lock NAME` writes that list anew, from what the client's own requirements resolve to now.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LISTS = Path(__file__).with_name("requirements")
FOLDER = ROOT / ".reports/clients"
TORCH = "torch==2.13.0"
PYTEST = "pytest==9.2.0"


@dataclass(frozen=True)
class Environment:
    """`wants`: what a user would install, and no more than the checks need beside it. `with_torch`: it cannot do without."""

    name: str
    wants: tuple[str, ...]
    with_torch: bool = False

    @property
    def version(self) -> str:
        """Of the client itself, which comes first."""
        return self.wants[0].partition("==")[2]

    @property
    def folder(self) -> Path:
        return FOLDER / f"{self.name}-{self.version}"

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    @property
    def requirements(self) -> Path:
        return LISTS / f"{self.name}.txt"

    def ensure(self) -> Path:
        """Its Python; installed where the list has changed since, or never was.

        Raises subprocess.CalledProcessError where pip fails, and leaves no half-installed environment that looks whole.
        """
        stamp, wanted = self.folder / ".installed", hashlib.sha256(self.requirements.read_bytes()).hexdigest()
        if not (stamp.exists() and stamp.read_text() == wanted):
            self._make()
            # The list is all there is to install: nothing to resolve, and no other torch to be dragged in.
            # Most modules are never imported: those that are get compiled then.
            _pip(self.python, "install", "--no-deps", "--no-compile", "-r", str(self.requirements))
            _pip(self.python, "check")
            stamp.write_text(wanted)
        return self.python

    def lock(self) -> None:
        """Install what `wants` resolves to, and list it."""
        self._make()
        _pip(self.python, "install", *self.wants, PYTEST, *([TORCH] if self.with_torch else []))
        # With setuptools where a package requires it, which `freeze` leaves out otherwise.
        frozen = _pip(self.python, "freeze", "--all", "--exclude", "pip").splitlines()
        # Torch comes alone and before these; a build's own mark means nothing on another machine.
        lines = [re.sub(r"\+[a-z0-9.]+$", "", line) for line in frozen if not line.startswith("torch==")]
        self.requirements.write_text("\n".join(lines) + "\n")

    def _make(self) -> None:
        # This environment's pip installs into it: one of its own would take longer to install than most clients.
        command = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(self.folder)]
        subprocess.run(command, check=True)
        if self.with_torch:
            index = os.environ.get("TORCH_INDEX_URL")
            _pip(self.python, "install", *(["--index-url", index] if index else []), TORCH)


def _pip(python: Path, *words: str) -> str:
    """What pip writes to stdout. Raises subprocess.CalledProcessError with it shown."""
    quiet = ["-qq"] if words[0] == "install" else []
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "--disable-pip-version-check",
        *words,
        *quiet,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        done.check_returncode()
    return done.stdout


ENVIRONMENTS = {
    one.name: one
    for one in (
        # The main environment has the third; these majors are what most programs still have.
        Environment("openai-1", ("openai==1.109.1",)),
        Environment("openai-2", ("openai==2.54.0",)),
        Environment("anthropic", ("anthropic==2.14.0",)),
        # The last one that sends `x-api-key`.
        Environment("anthropic-0", ("anthropic==0.125.0",)),
        Environment("langchain", ("langchain-openai==1.7.4", "langchain-ollama==1.1.0")),
        Environment("openai-agents", ("openai-agents==0.24.0",)),
        Environment("pydantic-ai", ("pydantic-ai-slim[openai]==2.68.0",)),
        Environment("mistralai", ("mistralai==3.7.0",)),
        Environment("ollama", ("ollama==0.6.3", "pydantic")),
        Environment("instructor", ("instructor==1.17.0",)),
        Environment(
            "llama-index",
            (
                "llama-index-llms-openai-like==0.8.1",
                "llama-index-llms-ollama==0.11.0",
                "llama-index-embeddings-openai-like==0.4.0",
            ),
        ),
        Environment("haystack", ("haystack-ai==3.4.1",)),
        # numpy: for its embedder alone.
        Environment("dspy", ("dspy==3.4.1", "numpy")),
        # It imports mcp wherever tools are sent, and does not ask for it.
        Environment("litellm", ("litellm==1.106.2", "mcp")),
        # transformers without torch: for the tokenizer alone.
        Environment("lm-eval", ("lm_eval[api]==0.4.13", "transformers==5.23.0")),
        Environment("guidellm", ("guidellm==0.8.1",), with_torch=True),
    )
}


if __name__ == "__main__":
    if sys.argv[1:2] != ["lock"]:
        sys.exit("usage: python -m tests.clients.environments lock NAME...")
    for name in sys.argv[2:]:
        ENVIRONMENTS[name].lock()
