"""Early launches: which kernels have them, that each waits on all of its ways before it writes, and what it reads before.

Interpreted kernels are launched one after the other, so what is looked at is what the compiler makes of them for Hopper."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence, Set
from pathlib import Path

import pytest
import torch
import triton

from executors.kernels.triton import early, tuning

ROOT = Path(__file__).parents[2]
EARLY = {
    "_one_row_kernel": {"weight", "norm"},
    "_few_rows_kernel": {"weight"},
    "_rotary_kernel": {"cells", "positions", "table"},
    "_wide_rotary_kernel": {"cells", "positions", "table"},
    "_split_kernel": {"pieces", "items", "lengths"},
    "_rms_norm_kernel": {"weight"},
    "_gated_kernel": set[str](),
}
"""Kernels of a decode step's layers, each with what it may read before it waits: weights, and a step's inputs."""
PROGRAM = """
import json, re, sys
import triton
from triton.compiler import ASTSource
from tests.gpu.launches import HOPPER, record
from tests.gpu.test_early import EARLY, faults_of
seen, found, late = set(), {}, set()
for launch in record():
    own = launch.constant("EARLY") if "EARLY" in launch.signature else None
    if own is None:
        late.add(launch.kernel)
        continue
    variant = (launch.kernel, *(launch.constant(name) for name in ("NORM", "GATED", "ADD", "SCALED", "ITEMS", "TURNED", "E4M3")
                                if name in launch.signature))
    if variant in seen or launch.kernel == "_split_kernel" and len([one for one in seen if one[0] == "_split_kernel"]) == 2:
        continue
    seen.add(variant)
    source = ASTSource(launch.function, launch.signature, launch.constants, launch.attrs)
    made = triton.compile(source, target=HOPPER, options={**launch.options, "launch_pdl": True})
    names = [name for name, kind in launch.signature.items() if kind != "constexpr"]
    found[str(variant)] = [own, made.metadata.launch_pdl, *faults_of(made.asm["ptx"], names, EARLY[launch.kernel])]
print(json.dumps({"found": found, "late": sorted(late)}))
"""
_GUARD = r"(?:@!?%p\d+ )?"


def faults_of(ptx: str, names: Sequence[str], allowed: Set[str]) -> list[str]:
    """What is wrong with a kernel that was launched early, by its code in PTX: a way to its end, a write to memory, or a read of
    anything but the arguments `allowed`, that no wait stands before. `names` of the arguments, in order."""
    blocks, order = _blocks(ptx)
    faults, seen, queue = [], set[tuple[str, bool]](), [(order[0], False)]
    origins = _origins(ptx)
    while queue:
        name, waited = queue.pop()
        if (name, waited) in seen:
            continue
        seen.add((name, waited))
        lines, following = blocks[name]
        for line in lines:
            waited = waited or "griddepcontrol.wait" in line
            if not waited and re.match(rf"{_GUARD}(st\.global|red\.|atom\.)", line):
                faults.append(f"writes before it waits: {line}")
            elif not waited and (
                read := re.match(rf"{_GUARD}(?:ld\.global|cp\.async|prefetch)[^\[]*(.*)", line)
            ):
                places = re.findall(r"%rd\d+", read[1])
                of = {
                    names[number]
                    for place in places
                    for number in origins.get(place, set())
                    if number < len(names)
                }
                if not of or of - allowed:
                    faults.append(f"reads {sorted(of)} before it waits: {line}")
            elif not waited and re.match(r"(ret|exit)\b", line):
                faults.append("ends without a wait")
            if jump := re.match(rf"{_GUARD}bra(?:\.uni)?\s+(\$?\w+);", line):
                queue.append((jump[1], waited))
                if line.startswith("bra"):
                    break
            if re.match(r"(ret|exit)\b", line):
                break
        else:
            if following is not None:
                queue.append((following, waited))
    return sorted(set(faults))


def _origins(ptx: str) -> dict[str, set[int]]:
    """By register of 64 bits, the numbers of the kernel's parameters that it is computed from. What was loaded from memory has
    none: it is an index."""
    found: dict[str, set[int]] = {}
    for _ in range(2):  # a loop's registers are used above the place where they change
        for line in map(str.strip, ptx.splitlines()):
            if load := re.match(r"ld\.param\.\w+\s+(%rd\d+), \[\w+_param_(\d+)", line):
                found.setdefault(load[1], set()).add(int(load[2]))
            elif computed := re.match(
                rf"{_GUARD}(?:add|sub|mad|mov|cvta|shl|selp|or)[\w.]*\s+(%rd\d+), (.*);", line
            ):
                for source in re.findall(r"%rd\d+", computed[2]):
                    found.setdefault(computed[1], set()).update(found.get(source, set()))
    return found


def _blocks(ptx: str) -> tuple[dict[str, tuple[list[str], str | None]], list[str]]:
    """The lines of each block of the only kernel by its label, with the label behind it; and the labels in order."""
    body = ptx[ptx.index("{", ptx.index(".entry")) :]
    blocks: dict[str, list[str]] = {"entry": []}
    name = "entry"
    for raw in body.splitlines():
        line = raw.strip()
        if label := re.match(r"(\$\w+):", line):
            name = label[1]
            blocks[name] = []
        else:
            blocks[name].append(re.sub(r"^\{\s*", "", line))
    order = list(blocks)
    behind = dict(zip(order, [*order[1:], None], strict=True))
    return {label: (lines, behind[label]) for label, lines in blocks.items()}, order


GOOD = """.entry k(
){
 ld.param.b64 %rd7, [k_param_0];
 ld.param.b64 %rd2, [k_param_1];
 mad.wide.s32 %rd1, %r9, 2, %rd7;
 ld.global.b32 %r1, [%rd1];
 griddepcontrol.launch_dependents;
 @%p1 bra $L__BB0_2;
 griddepcontrol.wait; // $0
 st.global.b32 [%rd2], %r1;
 bra.uni $L__BB0_3;
$L__BB0_2:
 griddepcontrol.wait; // $0
$L__BB0_3:
 ret;
}"""


def test_the_reader_of_ptx_finds_what_is_wrong() -> None:
    def faults(ptx: str) -> list[str]:
        return faults_of(ptx, ("weight", "x"), {"weight"})

    assert faults(GOOD) == []
    early_end = GOOD.replace("$L__BB0_2:\n griddepcontrol.wait; // $0", "$L__BB0_2:")
    assert faults(early_end) == ["ends without a wait"]
    first = GOOD.replace(" @%p1 bra", " @%p2 st.global.b32 [%rd9], 1;\n @%p1 bra")
    assert faults(first) == ["writes before it waits: @%p2 st.global.b32 [%rd9], 1;"]
    assert "ends without a wait" in faults(GOOD.replace(" griddepcontrol.wait; // $0\n", ""))
    soon = GOOD.replace(" griddepcontrol.launch", " ld.global.b32 %r5, [%rd2+16];\n griddepcontrol.launch")
    assert faults(soon) == ["reads ['x'] before it waits: ld.global.b32 %r5, [%rd2+16];"]
    unknown = GOOD.replace("mad.wide.s32 %rd1, %r9, 2, %rd7", "mad.wide.s32 %rd1, %r9, 2, %rd8")
    assert faults(unknown) == ["reads [] before it waits: ld.global.b32 %r1, [%rd1];"]


@pytest.mark.long(extended=True)
@pytest.mark.timeout(300)
def test_every_early_kernel_waits_before_it_writes_ends_or_reads_what_changes() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert {name.split("'")[1] for name in said["found"]} == {*EARLY} and not {*EARLY} & {*said["late"]}
    assert {name: found for name, found in said["found"].items() if found != [True, True]} == {}
    assert len(said["found"]) >= 10


def test_what_a_launch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted kernels never start early; compiled ones do from Hopper on, unless they are told not to."""
    early._options.cache_clear()
    if not torch.cuda.is_available():
        assert early.options() == {"EARLY": False}
    early._options.cache_clear()
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(early, "architecture", lambda: 90)
    assert early.options() == {"EARLY": True, "launch_pdl": True}
    with early.one_after_the_other():
        assert early.options() == {"EARLY": False}
    assert early.options()["EARLY"]
    monkeypatch.setattr(early, "architecture", lambda: 89)
    assert early.options() == {"EARLY": False}
    early._options.cache_clear()
    assert tuning.TUNED_ON == early.FIRST
