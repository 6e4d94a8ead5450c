"""Files that docs, docstrings and comments name exist."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRACKED = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/architecture.md",
    "docs/executors.md",
    "docs/README.md",
    "docs/start.md",
    "docs/your-model.md",
    "docs/operate.md",
    "docs/metrics.md",
    "docs/migrate.md",
    "docs/not-supported.md",
    "tests/ops/README.md",
)
NAMED = re.compile(r"(?<![\w./*<-])((?:[\w-]+/)*[\w-]+\.(?:py|h|cpp))\b(?!:)")
ELSEWHERE = {"llama.cpp", "ik_llama.cpp", "Python.h", "transformer.h", "tests/house/test_x.py"}
"""Names that stand for files of readers or of other projects."""


def _exists(name: str) -> bool:
    return name in ELSEWHERE or any(path == name or path.endswith(f"/{name}") for path in TRACKED)


def _missing(path: str) -> list[str]:
    text = (ROOT / path).read_text()
    return sorted({f"{path}: {name}" for name in NAMED.findall(text) if not _exists(name)})


def test_files_named_in_docs_exist() -> None:
    assert [fault for page in PAGES for fault in _missing(page)] == []


def test_files_named_in_the_product_exist() -> None:
    sources = [
        p
        for p in TRACKED
        if p.startswith(("server/", "engine/", "executors/", "tools/")) and p.endswith((".py", ".h", ".cpp"))
    ]
    assert [fault for source in sources for fault in _missing(source)] == []
