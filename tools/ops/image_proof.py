"""Builds the Dockerfile and shows that its images work: `make test-external ONLY=image`.

buildah builds both targets (`image`), with this machine's sources of packages (`package_sources`). The files of target cpu are
looked at (`image_files`); then it is started as an engine would start it (`container`: its user, a read-only root, no
capabilities, process 1, no network) and has to do what a container must. Of target cuda only the files are looked at.

Needs root, buildah, mmdebstrap, 6 GB below --folder (12 without overlays), and minutes. Exit code 0 when everything holds.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from executors.kernels.compiler import usable_isas
from tools.ops import image_files, package_sources
from tools.ops.container import Container
from tools.ops.image import Builder, BuildFailed, ImageConfig, base_release

_MAX_BYTES = 1_400_000_000
_READY_WITHIN = 120.0
_STOPS_WITHIN = 10.0
"""Seconds for the end of a server without requests. Docker kills after ten by default."""
_MAX_WRITTEN = 4_000_000
"""Bytes that serving may leave in the volume and in /tmp: locks and small caches."""
_TOOLS = ("buildah", "mmdebstrap", "unshare", "nsenter", "setpriv")
_COMPLETE = """
import json, urllib.request
body = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 4}
request = urllib.request.Request(
    "http://127.0.0.1:8000/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
)
print(json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["text"])
"""
_ANSWER = " Paris"
"""The default model gives it three quarters of the probability, whatever kernels compute it."""
_FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"
_TORCH = "import torch; print(torch.__version__, torch.version.cuda)"


class ProofFailed(Exception):
    """Something does not hold; says what."""


def check(what: str, holds: bool, seen: object = "") -> None:
    """Print a line, or raise ProofFailed."""
    if not holds:
        raise ProofFailed(f"{what}: {seen}")
    print(f"  ok   {what}", flush=True)


def look_at_files(root: Path, image: ImageConfig, canary: str) -> None:
    """The contents of target cpu."""
    size = image_files.size_of(root)
    check(f"{size / 1e6:.0f} MB, at most {_MAX_BYTES / 1e6:.0f}", size <= _MAX_BYTES)
    for what, found in (
        ("no compiler is left inside", image_files.compilers(root)),
        ("no cache and no tool of the build is left", image_files.left_over(root)),
        ("the server's user can change nothing but its home", image_files.writable(root, _uid(image))),
        (
            "no secret of this machine is in files, variables or history",
            image_files.secrets(root, image, canary),
        ),
    ):
        check(what, not found, found[:10])


def serve(root: Path, image: ImageConfig, folder: Path) -> None:
    """The image's own command, from the first look at the process to the end by the stop signal."""
    with Container(root, image, folder) as container:
        early = container.execute(image.probe)
        check(
            "the health check fails before it is ready", early.returncode == 1 and bool(early.stderr), early
        )
        seconds = wait_until_ready(container)
        check(f"the health check succeeds {seconds:.1f} s after the start", seconds < _READY_WITHIN)
        wrong = container.execute(image.probe, {"COHORT_PORT": "1"})
        check(
            "it fails where nothing answers, and says why",
            wrong.returncode == 1 and bool(wrong.stderr),
            wrong,
        )
        ready = container.execute(["python", "-c", _FETCH, "http://127.0.0.1:8000/ready"])
        check("/ready answers", ready.stdout.strip() == '{"status":"ready"}', ready)
        answer = container.execute(["python", "-c", _COMPLETE])
        check("the default model completes a prompt", answer.stdout.startswith(_ANSWER), answer)
        look_at_process(container, image)
        look_at_writes(container, image)
        began = time.monotonic()
        code = container.stop()
        took = time.monotonic() - began
        check(f"{image.stop_signal} ends it with exit code 0", code == 0, f"{code}\n{container.log()}")
        check(f"within {took:.1f} s", took < _STOPS_WITHIN)
        check("it drained before", "draining" in container.log(), container.log())


def serve_with_kernels(root: Path, image: ImageConfig, isa: str, folder: Path) -> None:
    """A start with the kernels for one instruction set: nothing can be compiled in the image."""
    with Container(root, image, folder, {"COHORT_CPU_ISA": isa}) as container:
        wait_until_ready(container)
        answer = container.execute(["python", "-c", _COMPLETE])
        live = container.execute(["python", "-c", _FETCH, "http://127.0.0.1:8000/v1/executors"])
        status = json.loads(live.stdout)["data"][0]["status"]
        check(
            f"kernels for {isa} compute the answer",
            answer.stdout.startswith(_ANSWER) and _uses(status, isa),
            status,
        )
        check("and it ends with exit code 0", container.stop() == 0, container.log())


def _uses(status: object, isa: str) -> bool:
    """Whether the executor's status names these kernels, and no note says that one is missing."""
    text = json.dumps(status)
    return f"CPU kernels {isa}," in text and "compil" not in text


def wait_until_ready(container: Container) -> float:
    """Ask as an engine does, more often. Returns seconds."""
    began = time.monotonic()
    while (run := container.execute(container.image.probe)).returncode:
        container.check_alive()
        if time.monotonic() - began > _READY_WITHIN:
            raise ProofFailed(f"not ready: {run.stderr}{container.log()}")
        time.sleep(0.2)
    return time.monotonic() - began


def look_at_process(container: Container, image: ImageConfig) -> None:
    """The first process is the server, as the image's user, with nothing more."""
    status = dict(
        line.split(":\t", 1)
        for line in container.execute(["cat", "/proc/1/status"]).stdout.splitlines()
        if ":\t" in line
    )
    check("process 1 is the server", status["Name"].startswith("cohort: server"), status["Name"])
    uid = str(_uid(image))
    check(f"it runs as uid {uid}", set(status["Uid"].split()) == {uid} and uid != "0", status["Uid"])
    check("it has no capabilities", int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0, status)
    check("it cannot gain privileges", status["NoNewPrivs"] == "1", status)
    torch = container.execute(["python", "-c", _TORCH])
    check(f"torch {torch.stdout.strip()}", torch.stdout.startswith("2.13.0"), torch)


def look_at_writes(container: Container, image: ImageConfig) -> None:
    """Only volume and /tmp can be written to, and serving writes little."""
    for folder in ("/", "/opt/cohort", "/etc", "/var/tmp"):
        run = container.execute(["touch", f"{folder}/written"])
        check(f"{folder} is read-only", "Read-only file system" in run.stderr, run)
    folders = (*image.volumes, "/tmp", "/dev/shm")
    listing = container.execute(["find", *folders, "-type", "f", "-printf", "%s %p\n"])
    sizes = {name: int(size) for size, name in (line.split(" ", 1) for line in listing.stdout.splitlines())}
    for name, size in sizes.items():
        print(f"       {size:>9,} {name}")
    check("what it keeps in volume and /tmp is small", sum(sizes.values()) < _MAX_WRITTEN, sizes)
    for folder in folders:
        run = container.execute(["touch", f"{folder}/written"])
        check(f"{folder} can be written to", run.returncode == 0, run)


def look_at_cuda(root: Path, image: ImageConfig) -> None:
    """Target cuda: everything of it but CUDA itself, where no index that can be reached has it."""
    check("it runs as a user too", _uid(image) > 0 and image.entrypoint == ["cohort"], image.user)
    missing = {"gcc", "ld"} - {Path(name).name for name in image_files.compilers(root)}
    check("Triton finds a C compiler", not missing, missing)
    check("and Python's headers", any(root.glob("usr/include/python3*/Python.h")))
    check("the server is in it", (root / image_files.OWN / "bin/cohort").exists())
    packages = sorted(path.name for path in root.glob("opt/cohort/lib/python3*/site-packages/*"))
    absent = [name for name in ("triton", "nvidia") if name not in packages]
    if absent:
        print(f"  NOT BUILT: {' and '.join(absent)}: torch came from an index of CPU builds")


def _uid(image: ImageConfig) -> int:
    return int(image.user.partition(":")[0])


def main() -> int:
    """Build, look, run, clean up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="an empty folder for images and logs; logs are kept")
    parser.add_argument("--torch-index-url", default="", help="the build argument TORCH_INDEX_URL")
    parser.add_argument("--only-cpu", action="store_true", help="leave target cuda out")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("image_proof: needs root, for chroot and namespaces", file=sys.stderr)
        return 2
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        print(f"image_proof: not installed: {', '.join(missing)}", file=sys.stderr)
        return 2
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="cohort-image-"))).resolve()
    try:
        _prove(folder, options.torch_index_url, only_cpu=options.only_cpu)
    except (ProofFailed, BuildFailed, AssertionError) as error:
        print(f"image_proof: {error}", file=sys.stderr)
        return 1
    finally:
        if options.folder is None:
            shutil.rmtree(folder)
    print("image_proof: everything holds")
    return 0


def _prove(folder: Path, torch_index_url: str, *, only_cpu: bool) -> None:
    release, canary = base_release(), secrets.token_hex(16)
    folder.mkdir(parents=True, exist_ok=True)
    builder = Builder(folder, package_sources.read(release, folder / "sources", canary))
    arguments = {"TORCH_INDEX_URL": torch_index_url}
    try:
        began = time.monotonic()
        builder.make_base(release)
        print(f"base image: Debian {release}, {time.monotonic() - began:.0f} s", flush=True)
        for target in ("cpu",) if only_cpu else ("cpu", "cuda"):
            began = time.monotonic()
            name = builder.build(target, arguments)
            print(f"target {target}: built in {time.monotonic() - began:.0f} s", flush=True)
            image = builder.config(name)
            with builder.mounted(name) as root:
                if target == "cuda":
                    look_at_cuda(root, image)
                    continue
                look_at_files(root, image, canary)
                serve(root, image, _made(folder / "served"))
                for isa in usable_isas():
                    serve_with_kernels(root, image, isa.name, _made(folder / isa.name))
    finally:
        builder.close()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(main())
