"""`cohort doctor`: what this installation and this machine are, and what would be faster."""

from __future__ import annotations

import os
from typing import Annotated, Any

from executors.devices import GPU
from server.commands.common import console, fail, print_json, size
from server.commands.options import DEFAULT_URL, Text, flag
from server.system.executor_tool import ToolError, ask

_PACKAGES = (
    "tokenizers", "transformers", "safetensors", "huggingface_hub", "fastapi", "uvicorn", "uvloop", "numpy", "triton",
)  # fmt: skip
_BUILD = f"{GPU}_build"
_ENOUGH_FILES = 4096
"""Open files: a connection each, and some."""
_LITTLE = 1 << 30
_ISA_LIMITS = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA")
"""Variables that make torch use less than the CPU offers."""


def doctor(
    as_json: Annotated[bool, flag("Print JSON.", "--json")] = False,
    bundle: Annotated[
        Text,
        flag(
            "Write an archive for a bug report: this report, versions, and of a running server the settings in force, the "
            "stories of the last requests and the metrics. Secrets are removed.",
            "--bundle",
            metavar="FILE.tar.gz",
        ),
    ] = None,
    url: Annotated[Text, flag(f"With --bundle: address of the server [{DEFAULT_URL}].", "--url")] = None,
    api_key: Annotated[Text, flag("With --bundle: the server's key [COHORT_API_KEY].", "--api-key")] = None,
    admin_key: Annotated[
        Text,
        flag("With --bundle: its admin key, for settings and stories [COHORT_ADMIN_KEY].", "--admin-key"),
    ] = None,
    metrics_key: Annotated[
        Text, flag("With --bundle: its key for /metrics [COHORT_METRICS_KEY].", "--metrics-key")
    ] = None,
) -> None:
    """Show what this machine can do.

    Reports versions, CPU features, limits, the kernels that Cohort chooses on this machine, and advice for more speed.
    """
    if bundle is None and any(one is not None for one in (url, api_key, admin_key, metrics_key)):
        fail("--url and keys are for --bundle FILE")
    facts = collect()
    if bundle is not None:
        _bundle(bundle, facts, url or DEFAULT_URL, api_key, admin_key, metrics_key)
    elif as_json:
        print_json(facts)
    else:
        _show(facts)


def _bundle(
    file: str,
    facts: dict[str, Any],
    url: str,
    api_key: str | None,
    admin_key: str | None,
    metrics_key: str | None,
) -> None:
    """Write the archive and say what it lacks."""
    from pathlib import Path

    from clients.doctor.bundle import ClientKeys, write_bundle
    from server.settings.foreign.keys import client_key

    keys = ClientKeys(
        api_key or client_key(os.environ),
        admin_key or os.environ.get("COHORT_ADMIN_KEY") or None,
        metrics_key or os.environ.get("COHORT_METRICS_KEY") or None,
    )
    try:
        missing = write_bundle(Path(file), facts, url=url, keys=keys, environ=os.environ)
    except OSError as error:
        fail(f"--bundle {file}: {error.strerror or error}")
    print(f"wrote {file}: secrets are removed; look through it before you send it")
    for reason in missing.values():
        print(f"  without {reason}")


def collect() -> dict[str, Any]:
    """Everything. What cannot be found out says so in its place."""
    facts: dict[str, Any] = {
        "versions": _versions(),
        "box": _or_error("box"),
        "torch": _or_error("kernels"),
        "system": _system(),
        "hub": _hub(),
    }
    return {**facts, "advice": advice(facts)}


def _or_error(tool: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = ask(tool, {})
    except ToolError as error:
        return {"error": str(error)}
    return answer


def _versions() -> dict[str, str | None]:
    import platform
    from importlib import metadata

    from server import __version__

    versions: dict[str, str | None] = {"cohort": __version__, "python": platform.python_version()}
    for name in ("torch", *_PACKAGES):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _system() -> dict[str, Any]:
    import platform
    import resource
    import shutil

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    libc, libc_version = platform.libc_ver()
    return {
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": f"{libc} {libc_version}".strip(),
        "compiler": next((path for name in ("gcc", "clang", "cc") if (path := shutil.which(name))), None),
        "open_files": {"soft": _unless_unlimited(soft), "hard": _unless_unlimited(hard)},
        "isa_limits": {name: os.environ[name] for name in _ISA_LIMITS if os.environ.get(name)},
    }


def _unless_unlimited(number: int) -> int | None:
    return number if number >= 0 else None


def _hub() -> dict[str, Any]:
    """Where models by hub name are, and whether there is a token: never the token itself."""
    from pathlib import Path

    try:
        from huggingface_hub import constants, get_token
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    cache = Path(constants.HF_HUB_CACHE)
    place = next(path for path in (cache, *cache.parents) if path.exists())
    return {
        "cache": str(cache),
        "exists": cache.is_dir(),
        "writable": os.access(place, os.W_OK),
        "models": sum(1 for _ in cache.glob("models--*")) if cache.is_dir() else 0,
        "free": _free_on(place),
        "endpoint": constants.ENDPOINT,
        "offline": bool(constants.HF_HUB_OFFLINE),
        "token": get_token() is not None,
    }


def _free_on(place: Any) -> int:
    import shutil

    return shutil.disk_usage(place).free


def advice(facts: dict[str, Any]) -> list[str]:
    """What would be faster, or is about to fail; a sentence each."""
    box, torch, system = facts["box"], facts["torch"], facts["system"]
    sentences: list[str] = []
    if "error" in torch:
        sentences.append(f"torch does not work, so no model can be served: {torch['error']}")
    else:
        sentences += _of_kernels(torch, box, system)
    if "error" not in box:
        sentences += _of_box(box)
    soft, hard = system["open_files"]["soft"], system["open_files"]["hard"]
    if soft is not None and soft < _ENOUGH_FILES:
        more = f"up to {hard}" if hard is not None else "to any number"
        sentences.append(f"{soft} files may be open, a connection each: raise it with `ulimit -n` ({more})")
    return sentences


def _of_kernels(torch: dict[str, Any], box: dict[str, Any], system: dict[str, Any]) -> list[str]:
    sentences = []
    for name, value in system["isa_limits"].items():
        sentences.append(f"{name}={value} keeps torch from what this CPU can do: unset it")
    if torch["device"] == GPU:
        if torch["triton_lacks"]:
            sentences.append(
                f"Cohort's GPU kernels cannot be built, and torch's are slower: {torch['triton_lacks']}"
            )
        return sentences
    if box.get("nvidia") and torch[_BUILD] is None:
        sentences.append(
            f"an NVIDIA GPU is here, but torch {torch['torch']} was built without CUDA: install a CUDA build"
        )
    elif box.get("nvidia"):
        sentences.append("an NVIDIA GPU is here, but torch cannot use it: check the driver with nvidia-smi")
    if torch["linear"]["bfloat16"].startswith("cohort-cpu"):
        pass
    elif system["compiler"] is None and box.get("cpu", {}).get("flags", []) and "avx2" in box["cpu"]["flags"]:
        sentences.append(
            "no C++ compiler is here to build Cohort's kernels, and torch's are slower: install one (g++)"
        )
    elif not torch["bf16_kernels"]:
        sentences.append(
            "bfloat16 models compute slowly on this CPU, which has no instructions for them: --dtype float32 is faster "
            "where memory allows it"
        )
    elif torch["linear"]["bfloat16"] == torch["linear"]["float32"]:
        sentences.append(
            "this torch does not pack bfloat16 weights: another build of it may be twice as fast in decoding"
        )
    if not torch["mkl"] and box.get("cpu", {}).get("flags", []) and "avx2" in box["cpu"]["flags"]:
        sentences.append("this torch was built without MKL: float32 products are slower than they could be")
    return sentences


def _of_box(box: dict[str, Any]) -> list[str]:
    sentences = []
    logical, threads, affinity = box["cpu"]["logical"], box["threads"], box["affinity"]
    if affinity < logical:
        sentences.append(
            f"this process may run on {affinity} of {logical} CPUs: widen its affinity (taskset, cpuset)"
        )
    if threads < affinity:
        sentences.append(
            f"a cgroup's CPU quota allows {min(box['cpu_quotas']):g} of {affinity} CPUs: raise cpu.max"
        )
    memory = box["memory"]
    if memory["available"] < _LITTLE:
        sentences.append(
            f"{size(memory['available'])} of memory are free: KV gets 60 % of what the weights leave of that"
        )
    if memory["total"] < memory["machine"]:
        sentences.append(
            f"a cgroup allows {size(memory['total'])} of the machine's {size(memory['machine'])} of memory: more of it "
            "means more sequences at once"
        )
    if box["governor"] == "powersave":
        sentences.append("the CPU's frequency governor is powersave: performance answers faster")
    return sentences


# -- what a person sees ----------------------------------------------------------------------------------------------------


def _show(facts: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console()
    sections = (
        ("Versions", _version_lines(facts)),
        ("Machine", _box_lines(facts["box"])),
        ("Kernels", _kernel_lines(facts["torch"])),
        ("System", _system_lines(facts["system"], facts["hub"])),
    )
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for title, lines in sections:
        table.add_row()
        table.add_row(Text(title, style="bold not dim"))
        for name, value in lines:
            table.add_row(f"  {name}", value)
    screen.print(table)
    screen.print()
    screen.print("What would be faster", style="bold")
    for line in facts["advice"]:
        item = Table.grid(padding=(0, 1))
        item.add_row(" ", Text("!", style="yellow"), line)
        screen.print(item)
    if not facts["advice"]:
        screen.print("  Nothing found: the server can use all that this machine has.", style="green")
    screen.print()


def _version_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    versions = facts["versions"]
    first = [(name, versions[name] or "not installed") for name in ("cohort", "python", "torch")]
    rest = ", ".join(f"{name} {versions[name]}" for name in _PACKAGES if versions[name])
    absent = ", ".join(name for name in _PACKAGES if not versions[name])
    return [*first, ("packages", rest), *([("absent", absent)] if absent else [])]


def _box_lines(box: dict[str, Any]) -> list[tuple[str, str]]:
    if "error" in box:
        return [("error", box["error"])]
    cpu, memory = box["cpu"], box["memory"]
    cores = f"{cpu['cores']} cores, " if cpu["cores"] else ""
    quotas = box["cpu_quotas"]
    quota = f"{min(quotas):g} CPUs" if quotas else "none"
    lines = [
        ("CPU", cpu["model"]),
        ("flags", " ".join(cpu["flags"]) or "none of those that matter"),
        ("CPUs", f"{cores}{cpu['logical']} logical, {box['affinity']} in the affinity mask"),
        ("threads", f"{box['threads']} are used"),
        ("cgroup", f"{box['cgroup']}; CPU quota {quota}; memory limit {_limits(memory['cgroups'])}"),
        ("memory", f"{size(memory['available'])} free of {size(memory['total'])}"),
    ]
    return lines + ([("governor", box["governor"])] if box["governor"] else [])


def _limits(groups: list[dict[str, int]]) -> str:
    if not groups:
        return "none"
    tightest = min(groups, key=lambda group: group["limit"] - group["used"])
    return f"{size(tightest['limit'])}, of which {size(tightest['used'])} are used"


def _kernel_lines(torch: dict[str, Any]) -> list[tuple[str, str]]:
    if "error" in torch:
        return [("torch", f"does not work: {torch['error']}")]
    libraries = [name for name, there in (("MKL", torch["mkl"]), ("oneDNN", torch["onednn"])) if there]
    build = f"CUDA {torch[_BUILD]}" if torch[_BUILD] else "CPU only"
    half = [name for name, key in (("bfloat16", "bf16_kernels"), ("float16", "fp16_kernels")) if torch[key]]
    lines = [
        (
            "torch",
            f"{torch['torch']} ({build}; {', '.join(libraries) or 'no BLAS'}; {torch['cpu_capability']})",
        ),
        ("device", torch["device"]),
    ]
    for gpu in torch["devices"]:
        lines.append(
            ("GPU", f"{gpu['name']} ({gpu['capability']}), {size(gpu['free'])} free of {size(gpu['total'])}")
        )
    lines.append(("layers", ", ".join(f"{name}: {path}" for name, path in torch["linear"].items())))
    lines.append(("attention", torch["attention"]))
    lines.append(("oneDNN for", ", ".join(half) or "float32 only"))
    return lines


def _system_lines(system: dict[str, Any], hub: dict[str, Any]) -> list[tuple[str, str]]:
    files = system["open_files"]
    soft, hard = (files[name] if files[name] is not None else "unlimited" for name in ("soft", "hard"))
    lines = [
        ("kernel", system["kernel"]),
        ("C library", system["libc"] or "unknown"),
        ("compiler", system["compiler"] or "none"),
        ("open files", f"{soft} (may be raised to {hard})"),
    ]
    if "error" in hub:
        return [*lines, ("hub", hub["error"])]
    there = f"{hub['models']} models" if hub["exists"] else "does not exist yet"
    writable = "" if hub["writable"] else ", not writable"
    lines.append(("hub cache", f"{hub['cache']} ({there}{writable}, {size(hub['free'])} free)"))
    offline = ", offline (HF_HUB_OFFLINE)" if hub["offline"] else ""
    lines.append(("hub", f"{hub['endpoint']}, {'with a token' if hub['token'] else 'no token'}{offline}"))
    return lines
