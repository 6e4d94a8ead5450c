"""A repository's files into the cache of huggingface_hub, so that other programs find them there too.

The library resolves the revision, lists and fetches the small files, and keeps the cache's layout. Weights are put into
`blobs/` from here: the library (2.4) throws a file away that was cut, and these are gigabytes. A partial file is called
<etag>.incomplete, is locked while a process writes it, and gets its name only when size and SHA-256 are right.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from huggingface_hub import (
    constants,
    get_cached_repo_tree,
    get_hf_file_metadata,
    hf_hub_url,
    snapshot_download,
)
from huggingface_hub.errors import CachedRepoTreeNotFoundError
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, only not in __all__

from executors.weight_files import INDEX
from server.hub.files import (
    ADAPTER_CONFIG,
    ADAPTER_FILES,
    ADAPTER_WEIGHTS,
    CONFIG,
    HubError,
    HubNotYet,
    gguf_files,
    index_name,
    small_files,
    takes_gguf,
    weight_files,
)

constants.DOWNLOAD_CHUNK_SIZE = 1 << 20
"""Bytes written at once, and lost by a cut. The library's 10 MiB are ten seconds of a slow line."""
_WORKERS = 4
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ETAG = re.compile(r"[\w-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Blob:
    """A weight file that is not in the cache yet."""

    file: str
    url: str
    size: int
    etag: str
    path: Path

    @property
    def partial(self) -> Path:
        return self.path.with_name(f"{self.etag}.incomplete")

    def missing(self) -> int:
        """Bytes still to come."""
        if self.path.exists():
            return 0
        return max(0, self.size - self.partial.stat().st_size) if self.partial.exists() else self.size


class _Meter:
    """Counts bytes over all files and threads; stands in for the library's progress bar."""

    def __init__(self, total: int, report: Callable[[int, int], None]) -> None:
        self._total, self._report, self._done = total, report, 0
        self._lock = threading.Lock()

    def update(self, count: float | None = 1) -> None:
        """`count` more bytes; less than 0 when a file starts anew."""
        with self._lock:
            self._done += int(count or 0)
            done = min(self._done, self._total)
        self._report(done, self._total)

    def __call__(self, **_: Any) -> _Meter:
        """Where the library makes a bar."""
        return self

    def __enter__(self) -> _Meter:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Download:
    """One repository at one revision. `report` gets bytes done and in all, from several threads. `gguf`: a GGUF file of it, or
    a quantization; None: see `_takes_gguf`. `adapter`: it holds a LoRA adapter."""

    def __init__(
        self,
        name: str,
        revision: str | None,
        cache: Path,
        report: Callable[[int, int], None],
        gguf: str | None = None,
        adapter: bool = False,
    ) -> None:
        self.name, self.revision, self.cache, self.report = name, revision, cache, report
        self.gguf = gguf
        self.adapter = adapter

    def run(self, before_weights: Callable[[Path], None] | None) -> Path:
        """The directory with the files, or the GGUF file. `before_weights` is called when all files but safetensors are there;
        None: no safetensors.

        Raises HubError, or what the library raises; `explain` knows both.
        """
        if not constants.HF_HUB_OFFLINE:
            self._make_cache()
        folder = self._snapshot(self.revision, [ADAPTER_CONFIG] if self.adapter else [CONFIG, INDEX])
        commit = folder.name
        sizes = self._listing(commit, folder)
        if self.adapter:
            return self._adapter(folder, commit, sizes)
        if self._takes_gguf(sizes):
            return self._gguf(folder, commit, sizes)
        if CONFIG not in sizes:
            raise HubError(f"{self.name} has no {CONFIG}: it is no model that can be served; take another")
        small = small_files(sizes)
        self._link(folder, commit, small)
        if before_weights is None:
            return folder
        weights = weight_files(self.name, sizes, self._index(folder, sizes))
        before_weights(folder)
        meter = _Meter(sum(sizes[file] for file in (*small, *weights)), self.report)
        meter.update(sum(sizes[file] for file in small))
        self._large(folder, commit, weights, meter)
        return folder

    def _takes_gguf(self, sizes: Mapping[str, int]) -> bool:
        """Whether a GGUF file is wanted: it is named, or the repository has no safetensors beside a configuration."""
        return self.gguf is not None or takes_gguf(sizes)

    def _adapter(self, folder: Path, commit: str, sizes: Mapping[str, int]) -> Path:
        """Fetch a LoRA adapter and return its folder."""
        missing = next((file for file in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) if file not in sizes), None)
        if missing is not None:
            raise HubError(
                f"{self.name} has no {missing}: it is no LoRA adapter that can be loaded; take another"
            )
        self._link(folder, commit, [file for file in ADAPTER_FILES if file in sizes])
        self._large(folder, commit, [ADAPTER_WEIGHTS], _Meter(sizes[ADAPTER_WEIGHTS], self.report))
        return folder

    def _gguf(self, folder: Path, commit: str, sizes: Mapping[str, int]) -> Path:
        """Fetch a GGUF file with all its parts and return the first."""
        files = gguf_files(self.name, sizes, self.gguf)
        self._large(folder, commit, files, _Meter(sum(sizes[file] for file in files), self.report))
        return folder / files[0]

    def _large(self, folder: Path, commit: str, files: Sequence[str], meter: _Meter) -> None:
        """Fetch the files that are not there yet, and have the library link them."""
        there = [file for file in files if (folder / file).exists()]
        meter.update(sum((folder / file).stat().st_size for file in there))
        self._weights(folder, commit, [file for file in files if file not in there], meter)
        self._link(folder, commit, files)

    def _link(self, folder: Path, commit: str, files: Sequence[str]) -> None:
        """Have the library put the files of `commit` into `folder`. It is not asked for files that are there: where it has no
        list of the repository and no network, it would try for 23 s to get one."""
        if not all((folder / file).exists() for file in files):
            self._snapshot(commit, files)

    def _make_cache(self) -> None:
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HubError(
                f"{self.name}: {self.cache} cannot be written to ({error.strerror}): name another place with --download-dir"
            ) from None

    def _snapshot(self, revision: str | None, files: Sequence[str]) -> Path:
        """Have the library fetch these files, or link those whose blobs are there."""
        patterns = [glob.escape(file) for file in files]
        return Path(
            snapshot_download(self.name, revision=revision, cache_dir=self.cache, allow_patterns=patterns)
        )

    def _listing(self, commit: str, folder: Path) -> dict[str, int]:
        """File name -> size of everything in the repository, or, in a cache that another version of the library filled
        and without a network to ask, of what is there."""
        try:
            files = get_cached_repo_tree(self.name, revision=commit, cache_dir=self.cache)
            return {file.path: file.size for file in files}
        except CachedRepoTreeNotFoundError:
            paths = (path for path in folder.rglob("*") if path.is_file())
            there = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
            with contextlib.suppress(HubError):
                if self._takes_gguf(there):
                    gguf_files(self.name, there, self.gguf)
                else:
                    weight_files(self.name, there, self._index(folder, there))
                return there
            raise

    def _index(self, folder: Path, sizes: Mapping[str, int]) -> Any:
        name = index_name(self.name, sizes)
        if name is None:
            return None
        try:
            index = json.loads((folder / name).read_text("utf-8"))
            if not isinstance(index, dict):
                raise ValueError("no object")
            return index
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            raise HubError(f"{self.name}: its {name} is no JSON: take another revision") from None

    def _weights(self, folder: Path, commit: str, files: Sequence[str], meter: _Meter) -> None:
        """Put the blobs of `files` into the cache."""
        blobs = folder.parent.parent / "blobs"
        assert folder.parent.parent.name == repo_folder_name(repo_id=self.name, repo_type="model")
        pool = ThreadPoolExecutor(_WORKERS, "download")
        blobs_to_fetch = list(pool.map(lambda file: self._look_up(file, commit, blobs), files))
        self._check_room(blobs_to_fetch)
        tasks = [pool.submit(self._fetch, blob, meter) for blob in blobs_to_fetch]
        # The first error counts: the process ends with it, and with it the other threads.
        for task in as_completed(tasks):
            task.result()

    def _look_up(self, file: str, commit: str, blobs: Path) -> _Blob:
        url = hf_hub_url(self.name, file, revision=commit)
        metadata = get_hf_file_metadata(url, retry_on_errors=True)
        if metadata.size is None or metadata.etag is None or not _ETAG.fullmatch(metadata.etag):
            raise HubError(
                f"{self.name}: {constants.ENDPOINT} does not say what {file} is: check HF_ENDPOINT"
            )
        return _Blob(file, url, metadata.size, metadata.etag, blobs / metadata.etag)

    def _check_room(self, blobs: Sequence[_Blob]) -> None:
        needed, free = sum(blob.missing() for blob in blobs), shutil.disk_usage(self.cache).free
        if needed > free:
            raise HubNotYet(
                f"{self.name} needs {needed / 1e9:,.1f} GB more in {self.cache}, where {free / 1e9:,.1f} GB are "
                "free: make room, or name another place with --download-dir"
            )

    def _fetch(self, blob: _Blob, meter: _Meter) -> None:
        """One file, from wherever an earlier attempt stopped."""
        blob.path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(blob.partial) as file:
            if blob.path.exists():  # another process was quicker
                blob.partial.unlink(missing_ok=True)
                meter.update(blob.size)
                return
            there = file.tell()
            if there > blob.size:
                there = file.truncate(0)
            meter.update(there)
            headers = build_hf_headers()
            http_get(
                blob.url,
                file,
                resume_size=there,
                headers=headers,
                expected_size=blob.size,
                tqdm_class=meter,  # type: ignore[arg-type]  # called like the class it stands in for
            )
            file.flush()
            if not _is_whole(blob):
                blob.partial.unlink()
                raise HubNotYet(
                    f"{self.name}: {blob.file} arrived damaged: start again, which fetches it anew"
                )
            blob.partial.rename(blob.path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """A file to append to, ours alone: two servers that start at once must not both write it."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0, 2)
        yield file


def _is_whole(blob: _Blob) -> bool:
    """Size, and content where the etag is its SHA-256, as it is for all large files."""
    with blob.partial.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        return size == blob.size and (
            _SHA256.fullmatch(blob.etag) is None
            or hashlib.file_digest(file, "sha256").hexdigest() == blob.etag
        )
