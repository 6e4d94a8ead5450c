"""What one purpose of a tool consists of, and how the catalogue's compact text is read."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class ToolKind:
    """One purpose of a tool. `parameters` are (names separated by "/", kind of value); `{0}`, `{1}` in `asks` stand for them.

    Two tools of one `group` are never offered together, since their requests could be taken for each other. The
    parameters at the places in `optional` are left out of some definitions and of the calls that do not mention them.
    An ask that starts with "~" is neither a question nor a command, so it takes no "can you".
    """

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...]
    asks: tuple[str, ...]
    group: str = ""
    optional: frozenset[int] = frozenset()


def holes(text: str) -> set[int]:
    """Return the numbers of the slots in a template."""
    return {int(number) for number in re.findall(r"\{(\d+)\}", text)}


def read_kinds(text: str) -> tuple[ToolKind, ...]:
    """Read blocks separated by empty lines.

    A block has a line `group: names`, a line of descriptions, a line of parameters, each `name/alias:kind` with "?"
    after an optional one or "-" for none, and lines of asks. Descriptions and asks are separated by "; ".
    """
    kinds = []
    for block in text.strip().split("\n\n"):
        head, descriptions, parameters, *asks = block.strip().split("\n")
        group, names = head.split(":")
        pairs = [
            (name, kind) for name, kind in (part.split(":") for part in parameters.split() if part != "-")
        ]
        kinds.append(
            ToolKind(
                tuple(names.split()),
                tuple(descriptions.split("; ")),
                tuple((name, kind.rstrip("?")) for name, kind in pairs),
                tuple(ask for line in asks for ask in line.rstrip(";").split("; ")),
                group.strip(),
                frozenset(at for at, (_, kind) in enumerate(pairs) if kind.endswith("?")),
            )
        )
    return tuple(kinds)
