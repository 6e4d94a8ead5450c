"""Throughput against latency as a PNG: a point per workload. matplotlib is imported when one is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server.commands.common import fail

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANELS = (("itl_p50_ms", "time between tokens, p50 (ms)"), ("e2e_p50_ms", "end to end, p50 (ms)"))
_RATE = "output_tokens_per_s"


def require() -> None:
    """Ends the process with one line where matplotlib is not installed: before an hour of measuring, not after it."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        fail("--plot draws with matplotlib, which is not installed: pip install 'cohort-server[bench]'")


def draw(report: dict[str, Any], path: Path) -> None:
    """Write the picture. Raises OSError."""
    # Without pyplot there is no global state, and matplotlib looks for no window system.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, title) in zip(figure.subplots(1, 2), _PANELS, strict=True):
        _panel(axes, report["workloads"], name)
        axes.set_xlabel("output tokens per second")
        axes.set_ylabel(title)
    config, client = report["config"], report["client"]
    runs = config["repeat"] - config["warm_up"]
    commit = f", commit {client['commit'][:10]}" if client["commit"] else ""
    figure.suptitle(
        f"{config['model']} at {config['url']}{commit}: medians of {runs}, bars from least to most"
    )
    figure.savefig(path, format="png", dpi=120)


def _panel(axes: Axes, entries: Sequence[dict[str, Any]], name: str) -> None:
    points = [
        (entry["workload"], entry["summary"][_RATE], entry["summary"][name], f"C{number}")
        for number, entry in enumerate(entries)
        if entry["summary"][_RATE] is not None and entry["summary"][name] is not None
    ]
    for workload, rate, latency, colour in points:
        axes.errorbar(
            rate["median"],
            latency["median"],
            xerr=_bars(rate),
            yerr=_bars(latency),
            fmt="o",
            capsize=3,
            color=colour,
        )
        label = f"{workload['name']} ({workload['concurrency']})"
        axes.annotate(
            label, (rate["median"], latency["median"]), textcoords="offset points", xytext=(6, 6), fontsize=8
        )
    if not points:
        axes.text(0.5, 0.5, "nothing to show", ha="center", va="center", transform=axes.transAxes)
    axes.margins(0.2)  # room for the labels
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def _bars(value: dict[str, float]) -> list[list[float]]:
    """Lengths below and above the median."""
    return [[value["median"] - value["min"]], [value["max"] - value["median"]]]
