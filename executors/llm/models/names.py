"""How a checkpoint writes the names of its tensors. No torch here."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from executors.llm.models.families import Family


class WrittenNames:
    """The names in one checkpoint: as the family's `TensorNames` has them, or in one of its `forms`."""

    def __init__(self, family: Family, present: Collection[str]) -> None:
        """`present`: all names in the checkpoint. Where none of the forms fits, names are the usual ones."""
        anchors = [f"{name}.weight" for name in (family.names.embed, family.names.final_norm)]
        self._form: Mapping[str, str] = next(
            (form for form in ({}, *family.forms) if any(_begun(name, form) in present for name in anchors)),
            {},
        )
        self._back = {written: usual for usual, written in self._form.items()}

    def written(self, name: str) -> str:
        """What the checkpoint calls the tensor with this usual name."""
        return _begun(name, self._form)

    def usual(self, name: str) -> str:
        """The usual name of what the checkpoint calls so."""
        return _begun(name, self._back)


def _begun(name: str, form: Mapping[str, str]) -> str:
    """`name` with another beginning, if `form` has one for it."""
    for old, new in form.items():
        if name.startswith(old):
            return new + name[len(old) :]
    return name
