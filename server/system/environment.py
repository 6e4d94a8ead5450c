"""Variables that the libraries of the server read. Standard library only; called before any of them is imported."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

_PREFIXES = (
    "HF_", "HUGGING_FACE_", "HUGGINGFACE_", "XDG_", "SSL_CERT_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "OTEL_", "TORCH_",
    "TORCHINDUCTOR_", "PYTORCH_", "TRITON_", "OMP_", "KMP_", "MKL_", "NCCL_", "GLOO_", "TMPDIR", "TEMP", "TMP",
)  # fmt: skip
"""Of variables that mean nothing when they are empty. CUDA_VISIBLE_DEVICES is none of them: empty, it hides every GPU."""


def is_unset(name: str, value: str) -> bool:
    """True for a variable that compose files and scripts pass on empty, and that a library would take at its word: an empty
    HF_HOME is the working directory to huggingface_hub, an empty HF_ENDPOINT no address."""
    return not value and name.startswith(_PREFIXES)


def drop_empty(environ: MutableMapping[str, str]) -> None:
    """Remove such variables, so that no library and no child process sees them."""
    for name in [name for name, value in environ.items() if is_unset(name, value)]:
        del environ[name]


def tokenize_in_one_thread(environ: MutableMapping[str, str]) -> None:
    """Let tokenizers work in the thread that calls them, unless the user has chosen: a server tokenizes one text at a time, and
    a pool of threads would only pass it on."""
    environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def without_empty(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy without such variables."""
    return {name: value for name, value in environ.items() if not is_unset(name, value)}
