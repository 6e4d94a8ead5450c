"""How this machine finds packages reaches the steps of a build, and nothing else of it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.ops import package_sources


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of pip with an option of every kind, read by pip itself."""
    (tmp_path / "index/simple").mkdir(parents=True)
    (tmp_path / "wheels").mkdir()
    (tmp_path / "ca.crt").touch()
    (tmp_path / "pins.txt").write_text("torch<3\n")
    lines = [
        "[global]", f"extra-index-url = file://{tmp_path}/index/simple", "    https://mirror.example/simple",
        f"find-links = {tmp_path}/wheels", f"cert = {tmp_path}/ca.crt", f"constraint = {tmp_path}/pins.txt", "timeout = 60",
        f"log = {tmp_path}/pip.log", "[install]", "user = yes",
    ]  # fmt: skip
    (tmp_path / "pip.conf").write_text("\n".join(lines))
    for name in (
        "PIP_FIND_LINKS",
        "PIP_CERT",
        "PIP_EXTRA_INDEX_URL",
        "PIP_DEFAULT_TIMEOUT",
        "PIP_CONSTRAINT",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    return tmp_path


def test_pip_reads_in_the_image_what_it_reads_here(pip: Path, tmp_path: Path) -> None:
    sources = package_sources.read("another-release", tmp_path / "made", "canary")
    assert not sources.sources and sources.options is None, "apt's files are another release's"
    volumes = sources.volumes
    assert volumes[str(pip / "wheels")] == pip / "wheels" and volumes[str(pip / "index")] == pip / "index"
    assert volumes["/run/build-certificates.crt"] == pip / "ca.crt"
    assert volumes["/run/build-constraints.txt"].read_text() == "torch<3\n\n"
    text = volumes["/etc/pip.conf"].read_text()
    options = dict(line.split(" = ", 1) for line in text.splitlines() if " = " in line)
    assert options["extra-index-url"] == f"file://{pip}/index/simple https://mirror.example/simple"
    assert options["cert"] == "/run/build-certificates.crt"
    assert options["constraint"] == "/run/build-constraints.txt" and options["timeout"] == "60"
    assert not {"log", "user"} & options.keys() and "# canary" in text


def test_apt_reads_what_this_machine_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        package_sources.platform, "freedesktop_os_release", lambda: {"VERSION_CODENAME": "bookworm"}
    )
    apt = tmp_path / "apt"
    (apt / "sources.list.d").mkdir(parents=True)
    (apt / "sources.list.d/debian.sources").write_text("Types: deb\n")
    (apt / "sources.list.d/old.list.disabled").write_text("deb http://x y z\n")
    monkeypatch.setattr(package_sources, "_APT", apt)
    run = package_sources.subprocess.run

    def answered(command: list[str], **options: object) -> object:
        command = ["echo", 'Acquire::Retries "3";'] if command[0] == "apt-config" else command
        return run(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(package_sources.subprocess, "run", answered)
    sources = package_sources.read("bookworm", tmp_path / "made", "canary")
    [source] = sources.sources
    assert source.name == "debian.sources" and source.read_text() == "Types: deb\n"
    assert sources.options is not None and 'Acquire::Retries "3";' in sources.options.read_text()
    assert sources.volumes[f"{apt}/sources.list.d"] == source.parent
    assert "docker-clean" in {path.name for path in sources.volumes[f"{apt}/apt.conf.d"].iterdir()}
