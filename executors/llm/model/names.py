"""The names that a checkpoint gives its tensors. No torch here."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator

from executors.llm.model.family import Family

BEGINNINGS = (
    "model.",
    "transformer.",
    "language_model.model.",
    "model.language_model.",
    "language_model.",
    "",
)
"""Prefixes of the body's names: in a model with a head; in a multimodal model as older and as newer savers write it; in its
decoder saved alone; and in a body saved alone."""


_HEAD = "lm_head"
"""The head's name in most families."""


class WrittenNames:
    """The names in one checkpoint: those of the family's `TensorNames`, after the prefix that the checkpoint uses.

    Savers write the body of a model with or without its attribute name in the whole. Wrappers for training and compilation
    add their own prefixes (`base_model.model.model.`, `_orig_mod.model.`).
    """

    def __init__(self, family: Family, present: Collection[str]) -> None:
        """`present`: all names in the checkpoint. If no prefix matches, the usual names are used."""
        names = family.names
        self._usual = names.beginning
        self._begin = _beginning(family, present)
        self._head = names.lm_head
        # Savers have moved the head and the body at different times: any form of the one is found beside any of the other.
        heads = list(self._heads())
        self._written_head = next((head for head in heads if f"{head}.weight" in present), heads[0])

    def _heads(self) -> Iterator[str]:
        """Yield possible names of the head, the most likely first."""
        whole = self._begin.removesuffix("model.") if self._begin.endswith("model.") else ""
        yield (whole if whole != self._begin else "") + self._head
        yield self._head
        # In each of the modules that the body is in.
        parts = self._begin.rstrip(".").split(".")
        for count in range(len(parts), 0, -1):
            yield f"{'.'.join(parts[:count])}.{self._head}" if parts[0] else self._head
        yield from (f"{begin}{self._head}" for begin in BEGINNINGS)

    def written(self, name: str) -> str:
        """Return the checkpoint's name of the tensor with this usual name."""
        if _is_of(self._head, name):
            return self._written_head + name.removeprefix(self._head)
        return _begun(name, self._usual, self._begin)

    def usual(self, name: str) -> str:
        """Return the usual name of the tensor with this checkpoint name."""
        if _is_of(self._written_head, name):
            return self._head + name.removeprefix(self._written_head)
        return _begun(name, self._begin, self._usual)


def _beginning(family: Family, present: Collection[str]) -> str:
    """Return the prefix of the body's names in a checkpoint with the names `present`."""
    usual = family.names.beginning
    embed, norm = (
        f"{name.removeprefix(usual)}.weight" for name in (family.names.embed, family.names.final_norm)
    )
    usual_beginnings = (usual, *(begin for begin in BEGINNINGS if begin != usual))
    others = sorted(name.removesuffix(embed) for name in present if name.endswith(f".{embed}"))  # of wrappers
    for begin in (*usual_beginnings, *others):
        if begin + embed in present and begin + norm in present:
            return begin
    # One of the two may be missing: the error then gives the name that it would have.
    return next(
        (begin for begin in usual_beginnings if begin + embed in present or begin + norm in present), usual
    )


def usual_name(family: Family, name: str, usual: Container[str]) -> str:
    """Return the one of the `usual` names that `name` stands for, whatever prefix it has; `name` itself if there is none.

    For a file that holds some weights of a model, such as an adapter: its names alone do not tell their prefix.
    """
    if name in usual:
        return name
    candidates = (
        family.names.beginning + name[len(begin) :] for begin in BEGINNINGS if name.startswith(begin)
    )
    return next((candidate for candidate in candidates if candidate in usual), name)


_WRAPPERS = (
    "base_model",
    "model",
    "module",
    "_orig_mod",
    "language_model",
    "text_model",
    "llm",
    "transformer",
)
"""Modules that models are put into: multimodal ones, training, compilation."""


def wrapped_name(family: Family, name: str, usual: Container[str]) -> str:
    """Return `usual_name` also for a name with any wrappers before it; `name` itself if there is none."""
    candidate, rest = usual_name(family, name, usual), name
    while candidate not in usual and rest.partition(".")[0] in _WRAPPERS:
        rest = rest.partition(".")[2]
        candidate = usual_name(family, rest, usual)
    return candidate if candidate in usual else name


def names_in_settings(stem: str) -> tuple[str, ...]:
    """Return the names that the module `stem` of a checkpoint may have in settings, its own first: with each prefix that savers
    use. They name modules of the model as it was loaded, and the files have the names of an older form of it."""
    begin = max((one for one in BEGINNINGS if stem.startswith(one)), key=len)
    rest = stem[len(begin) :]
    if not begin and rest != _HEAD:
        return (stem,)
    others = (one for one in BEGINNINGS if one != begin and (one or rest == _HEAD))
    return (stem, *(one + rest for one in others))


def _is_of(module: str, name: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def _begun(name: str, old: str, new: str) -> str:
    """Replace the prefix `old` of `name` by `new`, if `name` has it."""
    return new + name[len(old) :] if name.startswith(old) else name
