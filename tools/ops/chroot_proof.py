"""Shows that the Dockerfile's target works, where there is no container engine: `python -m tools.ops.chroot_proof`.

Runs the steps of target cpu in fresh chroots (`chroot_build`), starts the result as an engine would (`container`: its
user, a read-only root, no capabilities, process 1, no network) and checks what a container must do. Needs root,
debootstrap, 6 GB below --folder, and minutes. Exit code 0 when everything holds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tools.ops.chroot_build import Builder, HostPip
from tools.ops.container import Container
from tools.ops.dockerfile import Image, image_of, parse

ROOT = Path(__file__).resolve().parents[2]
TARGET = "cpu"
_READY_WITHIN = 120.0
_CHAT = """
import json, urllib.request
body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
request = urllib.request.Request(
    "http://127.0.0.1:8000/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
)
print(json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["message"]["content"])
"""
_FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"


class ProofFailed(Exception):
    """Something does not hold; says what."""


def check(what: str, holds: bool, seen: object = "") -> None:
    """Print a line, or raise ProofFailed."""
    if not holds:
        raise ProofFailed(f"{what}: {seen}")
    print(f"  ok   {what}", flush=True)


def prove(container: Container, image: Image) -> None:
    """All checks, from the first look at the process to the end by the stop signal."""
    probe = image.healthcheck
    wait_until_ready(container, probe)
    check("HEALTHCHECK exits 0 once it is ready", container.execute(probe).returncode == 0)
    wrong = container.execute(probe, {"COHORT_PORT": "1"})
    check(
        "HEALTHCHECK exits 1 and says why where nothing answers",
        wrong.returncode == 1 and bool(wrong.stderr),
        wrong,
    )
    ready = container.execute(["python", "-c", _FETCH, "http://127.0.0.1:8000/ready"])
    check("/ready answers", ready.stdout.strip() == '{"status":"ready"}', ready)
    answer = container.execute(["python", "-c", _CHAT])
    check("the default model answers a chat", "Paris" in answer.stdout, answer)
    privileges(container, image)
    file_system(container, image)
    code = container.stop()
    check(f"{image.stop_signal} ends it with exit code 0", code == 0, f"{code}\n{container.log()}")
    check("it drained before", "draining" in container.log(), container.log())


def wait_until_ready(container: Container, probe: list[str]) -> None:
    """Ask as an engine does, more often."""
    began = time.monotonic()
    while (run := container.execute(probe)).returncode:
        container.check_alive()
        if time.monotonic() - began > _READY_WITHIN:
            raise ProofFailed(f"not ready: {run.stderr}{container.log()}")
        time.sleep(0.2)
    print(f"  ready after {time.monotonic() - began:.1f} s")


def privileges(container: Container, image: Image) -> None:
    """The first process is the server, as the image's user, with nothing more."""
    status = dict(
        line.split(":\t", 1)
        for line in container.execute(["cat", "/proc/1/status"]).stdout.splitlines()
        if ":\t" in line
    )
    uid = image.user.partition(":")[0]
    check("process 1 is the server", status["Name"].startswith("cohort: server"), status["Name"])
    check(
        f"it runs as uid {uid}, not root", set(status["Uid"].split()) == {uid} and uid != "0", status["Uid"]
    )
    check("it has no capabilities", int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0, status)
    check("it cannot gain privileges", status["NoNewPrivs"] == "1", status)
    torch = container.execute(["python", "-c", "import torch; print(torch.__version__, torch.version.cuda)"])
    check("torch is the pinned version", torch.stdout.startswith("2.13.0"), torch)
    print(f"  torch {torch.stdout.strip()}")


def file_system(container: Container, image: Image) -> None:
    """Only volume and /tmp can be written to."""
    for folder in ("/", "/opt/cohort", "/etc"):
        run = container.execute(["touch", f"{folder}/written"])
        check(f"{folder} is read-only", "Read-only file system" in run.stderr, run)
    for folder in (*image.volumes, "/tmp"):
        run = container.execute(["touch", f"{folder}/written"])
        check(f"{folder} can be written to", run.returncode == 0, run)


def main() -> int:
    """Build, run, check, clean up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="where the chroots go; kept if given")
    parser.add_argument("--torch-index-url", default="", help="the build argument TORCH_INDEX_URL")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("chroot_proof: needs root, for chroot and namespaces", file=sys.stderr)
        return 2
    missing = [tool for tool in ("debootstrap", "unshare", "nsenter", "chroot") if shutil.which(tool) is None]
    if missing:
        print(f"chroot_proof: not installed: {', '.join(missing)}", file=sys.stderr)
        return 2
    folder = options.folder or Path(tempfile.mkdtemp(prefix="cohort-chroot-"))
    try:
        return _proof(folder.resolve(), options.torch_index_url)
    except (ProofFailed, RuntimeError) as error:
        print(f"chroot_proof: {error}", file=sys.stderr)
        return 1
    finally:
        if options.folder is None:
            shutil.rmtree(folder)


def _proof(folder: Path, torch_index_url: str) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    _, stages = parse((ROOT / "Dockerfile").read_text("utf-8"))
    began = time.monotonic()
    arguments = {"TORCH_INDEX_URL": torch_index_url} if torch_index_url else {}
    builder = Builder(stages, arguments, ROOT, folder, HostPip.read(), folder / "build.log")
    root = builder.build(TARGET)
    image = image_of(stages, TARGET)
    print(
        f"built in {time.monotonic() - began:.0f} s: {json.dumps(image.entrypoint + image.cmd)}, {_size(root)} MB"
    )
    volume = folder / "volume"
    shutil.copytree(
        root / image.volumes[0].lstrip("/"), volume
    )  # an engine fills a new volume from the image
    uid, _, gid = image.user.partition(":")
    os.chown(volume, int(uid), int(gid))
    with Container(root, image, volume, folder / "container.log") as container:
        prove(container, image)
    print("chroot proof: everything holds")
    return 0


def _size(root: Path) -> int:
    return (
        sum(path.lstat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        // 10**6
    )


if __name__ == "__main__":
    sys.exit(main())
