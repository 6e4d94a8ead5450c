"""The report of `cohort verify` on an encoder: pairs of texts, vectors and logits of labels beside transformers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from server.commands.verify.cases import DIFFERENT, EQUAL, NOT_THERE

if TYPE_CHECKING:
    from engine.text.tokenizer import Tokenizer

PAIRS = (
    ("What is the capital of Peru?", "Lima is its capital."),
    ("llamas", "Llamas live in the Andes.\nThey are related to camels, which live elsewhere."),
    ("Łódź 東京", ""),
)
"""Pairs of texts that both sides join."""


def pairs_of(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The pairs as the server joins them: `texts`, `ids`, and `types` of the tokens."""
    from server.templates.joined_pairs import leaves_types_out

    joined = [(texts, tokenizer.encode_pair(*texts)) for texts in PAIRS]
    untyped = leaves_types_out(tokenizer)
    return [
        {"texts": list(texts), "ids": pair.ids, "types": [0] * len(pair.ids) if untyped else pair.types}
        for texts, pair in joined
    ]


def parts(pairs: list[dict[str, Any]] | None, answer: dict[str, Any]) -> dict[str, Any]:
    """What is compared beside token ids. `answer` of `executors.llm.tools.compare_encoder`."""
    rows = answer["prompts"]
    differences = [
        {"texts": ours["texts"], "ours": {name: ours[name] for name in theirs}, "theirs": theirs}
        for ours, theirs in zip(pairs or (), answer.get("pairs", ()), strict=True)
        if any(ours[name] != theirs[name] for name in theirs)
    ]
    joined = NOT_THERE if pairs is None else DIFFERENT if differences else EQUAL
    labels = EQUAL if all(row["labels_equal"] for row in rows) else DIFFERENT
    return {
        "encoder": True,
        "pairs": {"outcome": joined, "compared": len(pairs or ()), "differences": differences},
        "vectors": {
            "outcome": EQUAL if all(row["vectors_equal"] for row in rows) else DIFFERENT,
            "texts": rows,
        },
        "labels": {"outcome": labels if answer["num_labels"] else NOT_THERE, "count": answer["num_labels"]},
    }


def summary(report: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any], str]]:
    """Title, part and detail of each line."""
    ids, pairs, rows = report["token_ids"], report["pairs"], report["vectors"]["texts"]
    some = f"{ids['compared']} texts, {ids['ids']:,} ids"
    yield "token ids", ids, some if ids["outcome"] != NOT_THERE else "no tokenizer"
    some = f"{pairs['compared']} pairs, ids and types"
    yield "pairs", pairs, some if pairs["outcome"] != NOT_THERE else "no tokenizer"
    count = sum(row["pair"] for row in rows)
    yield (
        "vectors",
        report["vectors"],
        f"{len(rows)} prompts, {count} of them with token types, by cls, mean and last",
    )
    labels = report["labels"]
    yield "labels", labels, f"{labels['count']} of a head" if labels["count"] else "no head"


def numbers(report: dict[str, Any]) -> Table:
    """Differences of each prompt."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("tokens", "types", "vectors", "labels", "max |number|"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report["vectors"]["texts"]:
        table.add_row(
            f"{row['length']:,}",
            "2" if row["pair"] else "1",
            Text(_number(row["vectors"]), style="" if row["vectors_equal"] else "red"),
            Text(
                _number(row["labels"]) if report["labels"]["count"] else "",
                style="" if row["labels_equal"] else "red",
            ),
            f"{row['largest']:.3g}",
        )
    return table


def tolerance(report: dict[str, Any]) -> str:
    """A line on the limit."""
    own = report["own_rounding"]
    text = f"Largest difference of a number from float64. Allowed: {report['tolerance']:.2g}"
    if own is None:
        return f"{text}, as given."
    return f"{text}; what transformers itself loses in {report['dtype']}: {own:.2g}."


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2g}"
