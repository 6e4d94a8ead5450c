"""`make first-minutes`: README's first screen in an empty Debian, with no cache and nothing but what README says to install.

mmdebstrap makes Debian's minimal system with python3 and README's packages, and the commands run in namespaces of their own.
The network and pip's configuration are this machine's (`tools.ops.package_sources`), so packages come from where they come here.
What runs is the commit that is checked out. Needs root and 3 GB of disk.

    --out FOLDER    where first-minutes.cast and first-minutes.json go
    Other options are those of `python -m tools.first_minutes`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.first_minutes.screen import first_screen, packages
from tools.ops import package_sources
from tools.ops.image import base_release

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results"
_FROM_HERE = ("/etc/resolv.conf", "/etc/hosts")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")
_APT = ("/etc/apt", "/usr/share/keyrings")
_SOURCE, _RECORDER, _OUT = "opt/cohort.git", "opt/recorder", "opt/out"
_FILES = ("first-minutes.cast", "first-minutes.json")


def make_root(
    root: Path, sources: package_sources.PackageSources, release: str, names: Sequence[str]
) -> None:
    """Debian's minimal system in `root`, with packages by name and this checkout's commit as a repository to clone."""
    aptopt = [f"--aptopt={sources.options}"] if sources.options else []
    include = f"--include={','.join(names)}"
    command = ["mmdebstrap", "--quiet", "--variant=minbase", *aptopt, include, release, str(root)]
    subprocess.run([*command, *map(str, sources.sources)], check=True)
    (root / _OUT).mkdir(parents=True)
    for clone in (["--bare", str(ROOT), str(root / _SOURCE)], [str(root / _SOURCE), str(root / _RECORDER)]):
        subprocess.run(["git", "clone", "--quiet", *clone], check=True)


def mounts(root: Path, sources: package_sources.PackageSources) -> list[list[str]]:
    """Commands that mount what the processes in `root` see of this machine: devices, network configuration, pip's sources."""
    commands = [
        ["mount", "--rbind", "/dev", f"{root}/dev"],
        ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{root}/dev/shm"],
        ["mount", "-t", "proc", "proc", f"{root}/proc"],
        ["mount", "--rbind", "/sys", f"{root}/sys"],
    ]
    volumes = {path: Path(path) for path in _FROM_HERE}
    volumes |= {inside: path for inside, path in sources.volumes.items() if not inside.startswith(_APT)}
    for inside, path in volumes.items():
        place = root / inside.lstrip("/")
        if path.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        commands.append(["mount", "--bind", "-o", "ro", str(path), str(place)])
    return commands


def record(root: Path, sources: package_sources.PackageSources, options: Sequence[str]) -> int:
    """Run the recorder in `root`; returns its exit code."""
    proxies = {name: value for name, value in os.environ.items() if name.lower() in _PROXIES}
    environment = {
        "HOME": "/root", "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8", "USER": "root",
        "TERM": "xterm-256color", **proxies,
    }  # fmt: skip
    files = [f"--{kind}=/{_OUT}/{name}" for kind, name in zip(("cast", "report"), _FILES, strict=True)]
    inside = ["python3", "-m", "tools.first_minutes", f"--source=/{_SOURCE}", *files, *options]
    variables = [f"{name}={value}" for name, value in environment.items()]
    chroot = ["chroot", str(root), "env", "-i", "-C", f"/{_RECORDER}", *variables, *inside]
    script = "\n".join(["set -e", *map(shlex.join, mounts(root, sources)), f"exec {shlex.join(chroot)}"])
    spaces = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--propagation=private"]
    return subprocess.run([*spaces, "bash", "-c", script]).returncode


def main() -> int:
    """Returns the recorder's exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    own, options = parser.parse_known_args()
    if os.geteuid():
        sys.exit("Root is needed: a system is made, and things are mounted in it.")
    names = ["python3", *packages(first_screen((ROOT / "README.md").read_text("utf-8")))]
    with tempfile.TemporaryDirectory(prefix="first-minutes-") as folder:
        root, release = Path(folder, "root"), base_release()
        print(f"Making an empty Debian {release} with {' '.join(names)}", flush=True)
        sources = package_sources.read(release, Path(folder, "sources"), "no secret")
        make_root(root, sources, release, names)
        code = record(root, sources, options)
        for path in (root / _OUT).iterdir():
            shutil.copy(path, own.out / path.name)
    return code


if __name__ == "__main__":
    sys.exit(main())
