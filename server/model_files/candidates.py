"""Which of several GGUF files is served, by their names and sizes; of a directory or of a repository on the hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from executors import cgroup
from executors.contract import ConfigError

PREFERRED = "Q4_K_M"
NO_BOUND = 2**63 - 1
_QUANTIZATION = re.compile(
    r"(?<![A-Za-z0-9])(I?Q[1-8](?:_[A-Z0-9]+)*|BF16|F16|F32|MXFP4)(?![A-Za-z0-9])", re.IGNORECASE
)
PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_MOST_LISTED = 24


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model in one or several GGUF files. `name`: its only file or the first of its parts; `size`: bytes of all parts."""

    name: str
    files: tuple[str, ...]
    size: int

    @property
    def quantization(self) -> str | None:
        """The quantization in the file's name, where every converter writes it, in upper case."""
        return quantization_in(PurePosixPath(self.name).name)


def quantization_in(name: str) -> str | None:
    """Return the quantization in a file's name, such as `Q4_K_M`; the last one if there are several."""
    matches = _QUANTIZATION.findall(name)
    return matches[-1].upper() if matches else None


def model_stem(name: str) -> str:
    """Return a GGUF file's name without its ending and the number of its part."""
    return PART.sub("", name).removesuffix(".gguf")


def candidates(sizes: Mapping[str, int]) -> list[Candidate]:
    """Return the models among files (name -> bytes), in order. Files for images (mmproj) are no models; later parts belong to the
    first one, and parts without a first one are left out."""
    models = []
    for name in sorted(sizes):
        if not name.endswith(".gguf") or "mmproj" in PurePosixPath(name).name.lower():
            continue
        part = PART.search(name)
        if part is None:
            models.append(Candidate(name, (name,), sizes[name]))
        elif int(part[1]) == 1:
            stem = name[: part.start()]
            names = (f"{stem}-{number:05}-of-{part[2]}.gguf" for number in range(1, int(part[2]) + 1))
            files = tuple(one for one in names if one in sizes)
            models.append(Candidate(name, files, sum(sizes[one] for one in files)))
    return models


def choose(
    origin: str,
    listed_models: Iterable[Candidate],
    quantization: str | None,
    spelled: Callable[[Candidate], str],
) -> Candidate:
    """Return the only candidate, or the one in PREFERRED; with `quantization`, the one in that quantization.

    Raises ConfigError with one line that lists names (`spelled` as `cohort serve` takes them), sizes and what fits into memory.
    """
    models = list(listed_models)
    matching = models if quantization is None else _matching(models, quantization)
    if len(matching) > 1 and quantization is None:
        matching = _matching(models, PREFERRED)
    if len(matching) == 1:
        return matching[0]
    listed = ", ".join(f"{spelled(one)} ({described(one.size)})" for one in models[:_MOST_LISTED])
    more = f" and {len(models) - _MOST_LISTED} more" if len(models) > _MOST_LISTED else ""
    problem = (
        f"holds {len(models)} GGUF models" if quantization is None else f"has no GGUF file {quantization}"
    )
    if quantization is not None and len(matching) > 1:
        problem = f"has {len(matching)} GGUF files {quantization}"
    raise ConfigError(f"{origin} {problem}; name one of them: {listed}{more}")


def described(size: int) -> str:
    """Return a file's size, and whether its weights fit into the memory that is free now."""
    free = cgroup.memory_limit().available
    fits = "fits" if size < free else f"does not fit into {free / 2**30:.1f} GiB of free memory"
    number = f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
    return f"{number}, {fits}"


def cpu_threads() -> int:
    """Return the threads that compute on this CPU."""
    return cgroup.cpu_threads()


def free_memory(device: str) -> int:
    """Return the bytes that weights may take at most; NO_BOUND for those of a GPU, which was not asked."""
    on_gpu = device != "cpu" and any(Path("/dev").glob("nvidia[0-9]*"))
    return NO_BOUND if on_gpu else cgroup.memory_limit().available


def _matching(models: Iterable[Candidate], quantization: str) -> list[Candidate]:
    """Return those in a quantization; names of mixtures such as UD-Q4_K_XL are compared as a whole."""
    text = quantization.upper()
    exact = [one for one in models if one.quantization == text]
    return exact or [
        one for one in models if re.search(rf"(?:^|[-._/]){re.escape(text)}$", model_stem(one.name).upper())
    ]
