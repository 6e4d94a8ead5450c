"""How a checkpoint writes the names of its tensors. No torch here."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from executors.llm.models.families import Family


class WrittenNames:
    """The names in one checkpoint: as the family's `TensorNames` has them, or in one of its `forms`."""

    def __init__(self, family: Family, present: Collection[str]) -> None:
        """`present`: all names in the checkpoint. Where none of the forms fits, names are the usual ones."""
        forms: tuple[Mapping[str, str], ...] = ({}, *family.forms)
        anchors = [f"{name}.weight" for name in (family.names.embed, family.names.final_norm)]
        self._form = next(
            (form for form in forms if any(_begun(name, form) in present for name in anchors)), forms[0]
        )
        self._back = {written: usual for usual, written in self._form.items()}
        # Savers have moved the head and the body at different times: any form of the one is found beside any of the other.
        self._head = family.names.lm_head
        heads = [_begun(self._head, form) for form in (self._form, *forms)]
        self._written_head = next((head for head in heads if f"{head}.weight" in present), heads[0])

    def written(self, name: str) -> str:
        """What the checkpoint calls the tensor with this usual name."""
        if _is_of(self._head, name):
            return self._written_head + name.removeprefix(self._head)
        return _begun(name, self._form)

    def usual(self, name: str) -> str:
        """The usual name of what the checkpoint calls so."""
        if _is_of(self._written_head, name):
            return self._head + name.removeprefix(self._written_head)
        return _begun(name, self._back)


def _is_of(module: str, name: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def _begun(name: str, form: Mapping[str, str]) -> str:
    """`name` with another beginning, if `form` has one for it."""
    for old, new in form.items():
        if name.startswith(old):
            return new + name[len(old) :]
    return name
