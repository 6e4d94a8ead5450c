"""One call: its budget, its machine, its order, and the lines that it appends."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu.part import Options
from tools.gpu_check import log, meaning, process
from tools.gpu_check.log import Row
from tools.gpu_check.parts import AGAIN, DEVICE, MARGIN, PARTS, GpuPart, fitting

NO_TIME = "no time"
EVIDENCE = "evidence.txt"
"""Of all parts that did not pass: a lent machine gives few files back."""


class Call:
    """Runs parts until they or its time end. Writes the log in `out`; outputs of parts go to `work`, with a second log: a folder
    for results may be empty at each call, what else there is on a machine stays for the next one."""

    def __init__(
        self, out: Path, work: Path, options: Options, env: Mapping[str, str], budget: float, kind: str = "", fresh: bool = False
    ) -> None:  # fmt: skip
        self._out, self._work, self._options, self._env = out, work, options, env
        self._ends = time.monotonic() + budget - MARGIN
        self._paths = tuple(dict.fromkeys((work / "log.jsonl", out / "log.jsonl")))
        if left := log.salvage(out):
            print(f"written down, of a call that was killed: {', '.join(left)}")
        self._known = log.merged(log.PATH, *self._paths)
        self._before = tuple(self._known)
        self._fresh = fresh
        self._about: Row = {"commit": log.commit(), "kind": kind or None, "options": asdict(options)}
        self._about |= {"card": None, "torch": None, "triton": None}

    @property
    def left(self) -> float:
        """Seconds of the budget, but for the margin."""
        return self._ends - time.monotonic()

    def device(self) -> str:
        """The state of the part that says what machine this is."""
        row = self._run(DEVICE, min(DEVICE.limit, self.left))
        identity = row["figures"].get("identity", {})
        self._about |= {"card": identity.get("device")}
        self._about |= {one: identity.get(one) for one in ("torch", "triton")}
        self._keep(DEVICE, row)
        return str(row["state"])

    def parts(self, parts: Sequence[GpuPart], anew: bool = False) -> list[str]:
        """Run those that have not passed as they would run now, or all with `anew`, in their order; their states, "no time" for
        those that are left out. Where time is short, `fitting` chooses."""
        done = {} if anew else {part.name: row for part in parts if (row := self._passed(part))}
        states = []
        for number, part in enumerate(parts):
            rest = tuple(one for one in parts[number:] if one.name not in done)
            if part.name in done:
                print(f"{part.name}: passed {done[part.name].get('written')}")
                states.append("pass")
            elif part not in fitting(rest, self.left):
                print(
                    f"{part.name}: left out, {self.left:.0f} s are left for {len(rest)} parts: call again to go on"
                )
                states.append(NO_TIME)
            elif part.name == AGAIN:
                states += self._again(part)
            else:
                states.append(self._part(part))
        return states

    def _passed(self, part: GpuPart) -> Row | None:
        return None if self._fresh else log.passed(self._known, {**self._about, "part": part.name})

    def _again(self, place: GpuPart) -> list[str]:
        """The parts whose last line on this card, before this call, is no pass, those that take the least first, within the time
        of the place."""
        last = {row["part"]: row["state"] for row in self._before if row.get("card") == self._about["card"]}
        failed = [part for part in PARTS if last.get(part.name) in ("fail", log.CUT_OFF)]
        ends = time.monotonic() + min(place.limit, self.left)
        states = []
        for part in sorted(failed, key=lambda one: one.expected):
            left = min(self.left, ends - time.monotonic())
            states.append(self._part(part, left))
        return states

    def _part(self, part: GpuPart, most: float | None = None) -> str:
        """Run a part and keep its line; its state, or "no time"."""
        left = self.left if most is None else most
        if left < part.expected:
            print(
                f"{part.name}: {left:.0f} s are left for it, it takes {part.expected:.0f}: call again to go on"
            )
            return NO_TIME
        row = self._run(part, min(part.limit, left))
        if row["state"] == "fail" and left < part.limit and row["seconds"] >= left:
            # It was this call's time that ended, not the part's own: nothing is known against it.
            row |= {"state": log.CUT_OFF, "detail": f"the call's time ended after {row['seconds']:.0f} s"}
        self._keep(part, row)
        return NO_TIME if row["state"] == log.CUT_OFF else str(row["state"])

    def _run(self, part: GpuPart, allowed: float) -> Row:
        print(f"{part.name}: {part.what} ...")
        figures = log.begin(self._out, {**self._about, "part": part.name})
        row = process.run(part, self._options, self._work, self._env, allowed, figures)
        if row["state"] == "pass" and (wrong := self._faults(part, row)):
            row |= {"state": "fail", "detail": f"figures that cannot be: {'; '.join(wrong)}"}
        print(f"{part.name}: {row['state']}, {row['seconds']:.1f} s{headline(row)}")
        return row

    def _faults(self, part: GpuPart, row: Row) -> list[str]:
        try:
            return meaning.faults(part.name, row["figures"], self._options)
        except Exception as error:  # the parts behind it are worth more than the rules
            return [f"no rule can read them: {type(error).__name__}: {error}"]

    def _keep(self, part: GpuPart, row: Row) -> None:
        line = {**self._about, "part": part.name, **row}
        for path in self._paths:
            log.append(path, line)
        log.ended(self._out, part.name)
        self._known.append(line)
        said = "" if row["state"] == "pass" else process.ends_of(self._work / f"{part.name}.log")
        process.keep_evidence(self._out / EVIDENCE, part.name, said)


def headline(row: Row) -> str:
    """What a line of output says of a part's figures: why it did not pass, plain numbers, and whether its target was met."""
    figures = row["figures"]
    plain = {
        name: value
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    words = [str(row["detail"])] if row["detail"] else []
    words += [f"{name} {value:,.5g}" for name, value in plain.items()]
    if "reached" in figures:
        words.append("target reached" if figures["reached"] else "TARGET MISSED")
    if figures.get("fell_back"):
        words.append(f"THE SLOW WAY: {figures['fell_back']}")
    if figures.get("not_run"):
        words.append(f"not run: {', '.join(figures['not_run'])}")
    return "".join(f"; {word}" for word in words)
