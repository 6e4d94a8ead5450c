"""The kind of machine that figures belong to: the CPU's generation, decoded from /proc/cpuinfo, its instruction sets and cores.

Virtual machines often hide the product's name ("AMD EPYC"); family and model numbers stay. AMD's ranges are those of Linux'
arch/x86/kernel/cpu/amd.c, Intel's numbers those of arch/x86/include/asm/intel-family.h, Arm's those of its MIDR_EL1 parts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_AMD: dict[int, tuple[tuple[str, tuple[tuple[int, int], ...]], ...]] = {
    0x17: (
        ("Zen", ((0x00, 0x2F), (0x50, 0x5F))),
        ("Zen 2", ((0x30, 0x4F), (0x60, 0x7F), (0x90, 0x91), (0xA0, 0xAF))),
    ),
    0x19: (("Zen 3", ((0x00, 0x0F), (0x20, 0x5F))), ("Zen 4", ((0x10, 0x1F), (0x60, 0xAF)))),
    0x1A: (
        ("Zen 5", ((0x00, 0x2F), (0x40, 0x4F), (0x60, 0x7F))),
        ("Zen 6", ((0x50, 0x5F), (0x80, 0xAF), (0xC0, 0xCF))),
    ),
}
"""Family -> generation -> ranges of model numbers, both ends included."""
_INTEL = {
    0x3C: "Haswell", 0x3F: "Haswell", 0x45: "Haswell", 0x46: "Haswell",
    0x3D: "Broadwell", 0x47: "Broadwell", 0x4F: "Broadwell", 0x56: "Broadwell",
    0x4E: "Skylake", 0x5E: "Skylake", 0x8E: "Kaby Lake", 0x9E: "Coffee Lake", 0xA5: "Comet Lake", 0xA6: "Comet Lake",
    0x6A: "Ice Lake", 0x6C: "Ice Lake", 0x7D: "Ice Lake", 0x7E: "Ice Lake", 0xA7: "Rocket Lake",
    0x8C: "Tiger Lake", 0x8D: "Tiger Lake", 0x97: "Alder Lake", 0x9A: "Alder Lake",
    0xB7: "Raptor Lake", 0xBA: "Raptor Lake", 0xBF: "Raptor Lake", 0xAA: "Meteor Lake", 0xAC: "Meteor Lake",
    0xBD: "Lunar Lake", 0xC5: "Arrow Lake", 0xC6: "Arrow Lake",
    0x8F: "Sapphire Rapids", 0xCF: "Emerald Rapids", 0xAD: "Granite Rapids", 0xAE: "Granite Rapids",
    0xAF: "Sierra Forest",
}  # fmt: skip
"""Model numbers of family 6. 0x55 is three generations, by stepping."""
_ARM = {
    0xD0C: "Neoverse N1",
    0xD40: "Neoverse V1",
    0xD49: "Neoverse N2",
    0xD4F: "Neoverse V2",
    0xD84: "Neoverse V3",
}
_ISA = (
    "amx_bf16",
    "avx512_bf16",
    "avx512_vnni",
    "avx512f",
    "avx_vnni",
    "avx2",
    "bf16",
    "i8mm",
    "sve",
    "asimd",
)
"""Instruction sets that matter to the kernels, the strongest first."""


@dataclass(frozen=True, slots=True)
class Machine:
    """`generation`: "Zen 5", or "" where the numbers are not known. `cores`: those that this process may use. `memory_gb`:
    the machine's, in 10^9 bytes."""

    model: str
    generation: str
    family: int
    number: int
    isa: tuple[str, ...]
    cores: int
    memory_gb: int

    @property
    def name(self) -> str:
        """For file names: zen5-2cores."""
        known = self.generation or self.model
        return f"{re.sub(r'[^a-z0-9]+', '', known.lower()) or 'cpu'}-{self.cores}cores"

    @property
    def words(self) -> str:
        """For a sentence: "2 cores of an AMD EPYC (Zen 5, avx512_bf16), 25 GB"."""
        facts = ", ".join(fact for fact in (self.generation, *self.isa[:1]) if fact)
        article = "an" if self.model[:1].upper() in "AEIO" else "a"
        return f"{self.cores} cores of {article} {self.model} ({facts}), {self.memory_gb} GB"

    def facts(self) -> dict[str, Any]:
        """For a report."""
        return {"name": self.name, "words": self.words, **asdict(self), "isa": list(self.isa)}


def this() -> Machine:
    """The machine that this runs on, from /proc."""
    memory = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    size = int(memory.group(1)) * 1024 if memory else 0
    return of(Path("/proc/cpuinfo").read_text(), len(os.sched_getaffinity(0)), size)


def of(cpuinfo: str, cores: int, memory_bytes: int) -> Machine:
    """Decode the text of /proc/cpuinfo; the first processor stands for all."""
    lines = (line.partition(":") for line in cpuinfo.split("\n\n")[0].splitlines())
    facts = {name.strip(): value.strip() for name, _, value in lines}
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    family, number = _number(facts, "cpu family"), _number(facts, "model")
    if "CPU part" in facts:
        family, number = _number(facts, "CPU implementer"), _number(facts, "CPU part")
    generation = _generation(facts, family, number)
    model = re.sub(r"\s+", " ", re.sub(r"\((R|TM)\)|\bCPU\b|@.*", "", facts.get("model name", ""))).strip()
    isa = tuple(name for name in _ISA if name in flags)
    return Machine(
        model or generation or "CPU", generation, family, number, isa, cores, round(memory_bytes / 1e9)
    )


def _generation(facts: Mapping[str, str], family: int, number: int) -> str:
    match facts.get("vendor_id"):
        case "AuthenticAMD":
            for name, ranges in _AMD.get(family, ()):
                if any(first <= number <= last for first, last in ranges):
                    return name
        case "GenuineIntel" if family == 6:
            if number == 0x55:
                stepping = _number(facts, "stepping")
                return "Skylake" if stepping < 5 else "Cascade Lake" if stepping < 10 else "Cooper Lake"
            return _INTEL.get(number, "")
        case _ if family == 0x41 and "CPU part" in facts:
            return _ARM.get(number, "")
    return ""


def _number(facts: Mapping[str, str], name: str) -> int:
    try:
        return int(facts.get(name, ""), 0)
    except ValueError:
        return -1
