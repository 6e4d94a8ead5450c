"""Early launches: which kernels have them, that each waits on all of its ways before it writes, and what it reads before.

Interpreted kernels are launched one after the other, so what is looked at is what the compiler makes of them for Hopper."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton

from executors.kernels.triton import early, tuning

ROOT = Path(__file__).parents[2]
EARLY = {
    "_one_row_kernel",
    "_few_rows_kernel",
    "_rotary_kernel",
    "_split_kernel",
    "_rms_norm_kernel",
    "_gated_kernel",
}
"""Kernels of a decode step's layers."""
PROGRAM = """
import json, re, sys
import triton
from triton.compiler import ASTSource
from tests.gpu.launches import HOPPER, record
from tests.gpu.test_early import faults_of
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
    found[str(variant)] = [own, made.metadata.launch_pdl, *faults_of(made.asm["ptx"])]
print(json.dumps({"found": found, "late": sorted(late)}))
"""
_WRITES = re.compile(r"^\s*(?:@%?p\d+ )?(st\.global|red\.|atom\.)", re.MULTILINE)


def faults_of(ptx: str) -> list[str]:
    """What is wrong with a kernel that was launched early, by its code in PTX: a way to its end, or a write to memory, that no
    wait stands before."""
    blocks, order = _blocks(ptx)
    faults, seen, queue = [], set[tuple[str, bool]](), [(order[0], False)]
    while queue:
        name, waited = queue.pop()
        if (name, waited) in seen:
            continue
        seen.add((name, waited))
        lines, following = blocks[name]
        for line in lines:
            if "griddepcontrol.wait" in line:
                waited = True
            elif not waited and re.match(r"(?:@!?%p\d+ )?(st\.global|red\.|atom\.)", line):
                faults.append(f"writes before it waits: {line}")
            elif not waited and re.match(r"(ret|exit)\b", line):
                faults.append("ends without a wait")
            if jump := re.match(r"(?:@!?%p\d+ )?bra(?:\.uni)?\s+(\$?\w+);", line):
                queue.append((jump[1], waited))
                if line.startswith("bra"):
                    break
            if re.match(r"(ret|exit)\b", line):
                break
        else:
            if following is not None:
                queue.append((following, waited))
    return faults


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
    assert faults_of(GOOD) == []
    early_end = GOOD.replace("$L__BB0_2:\n griddepcontrol.wait; // $0", "$L__BB0_2:")
    assert faults_of(early_end) == ["ends without a wait"]
    first = GOOD.replace(" @%p1 bra", " @%p2 st.global.b32 [%rd9], 1;\n @%p1 bra")
    assert faults_of(first) == ["writes before it waits: @%p2 st.global.b32 [%rd9], 1;"]
    assert "ends without a wait" in faults_of(GOOD.replace(" griddepcontrol.wait; // $0\n", ""))


@pytest.mark.long(extended=True)
@pytest.mark.timeout(300)
def test_every_early_kernel_waits_before_it_writes_or_ends() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert {name.split("'")[1] for name in said["found"]} == EARLY and not EARLY & {*said["late"]}
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
