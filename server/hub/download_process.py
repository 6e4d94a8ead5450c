"""The process of one download: `server.hub.download_process`, with a HubModel as JSON for argument. client.py reads its answers.

It ends when its stdin does: no download outlives the server. It ends without waiting for the library's threads.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

_INTERVAL = 0.2
"""Seconds between two reports of progress."""


class Reporter:
    """Writes lines of JSON. Progress comes from several threads, as often as it likes; the newest is passed on every
    `_INTERVAL`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._newest: tuple[int, int] | None = None
        threading.Thread(target=self._tick, daemon=True).start()

    def progress(self, done: int, total: int) -> None:
        """Bytes done and bytes in all."""
        with self._lock:
            self._newest = (done, total)

    def say(self, message: dict[str, str]) -> None:
        """Anything else, after the newest progress."""
        with self._lock:
            self._write_newest()
            self._write(message)

    def _tick(self) -> None:
        while True:
            time.sleep(_INTERVAL)
            with self._lock:
                self._write_newest()

    def _write_newest(self) -> None:
        if self._newest is not None:
            self._write({"progress": self._newest})
            self._newest = None

    def _write(self, message: dict[str, Any]) -> None:
        print(json.dumps(message), file=self._out, flush=True)


def main() -> None:
    """Download, answer, end."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    go_on = threading.Event()
    threading.Thread(target=_hear_parent, args=(go_on,), daemon=True).start()
    import setproctitle

    setproctitle.setproctitle("cohort: download")
    job = json.loads(sys.argv[1])
    reporter = Reporter(out)
    reporter.say(_run(job, reporter, go_on))
    os._exit(0)


def _run(job: dict[str, Any], reporter: Reporter, go_on: threading.Event) -> dict[str, str]:
    from huggingface_hub import constants

    from server.hub.download import Download
    from server.hub.explain import explain, may_pass

    def before_weights(folder: Path) -> None:
        reporter.say({"small": str(folder)})
        go_on.wait()

    name, revision = job["name"], job["revision"]
    cache = Path(job["download_dir"] or constants.HF_HUB_CACHE).expanduser().resolve()
    try:
        download = Download(name, revision, cache, reporter.progress, job["gguf"], job["adapter"])
        directory = download.run(before_weights if job["weights"] else None)
        return {"directory": str(directory)}
    except Exception as error:
        return {"not_yet" if may_pass(error) else "error": explain(error, name, revision, cache)}


def _hear_parent(go_on: threading.Event) -> None:
    while os.read(0, 1):
        go_on.set()
    os._exit(1)


if __name__ == "__main__":
    main()
