"""Parts of gpu-check that end in every way there is."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
import warnings

from benchmarks.gpu.part import Failed, Found, NotRun, Options


def passes(options: Options, found: Found) -> None:
    found({"identity": {"device": "made up"}, "tiny": options.tiny})
    found({"tokens_per_s": 12.0})


def is_absent(options: Options, found: Found) -> None:
    raise NotRun("nothing is installed")


def fails(options: Options, found: Found) -> None:
    found({"tokens_per_s": 1.0})
    raise Failed("wrong numbers")


def raises(options: Options, found: Found) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def lacks_a_module(options: Options, found: Found) -> None:
    import module_that_nobody_has  # noqa: F401


def crashes(options: Options, found: Found) -> None:
    found({"tokens_per_s": 3.0})
    print("the last words", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def warns(options: Options, found: Found) -> None:
    """Through logging and through `warnings`, then fails."""
    logging.getLogger("there").info("all is well")
    logging.getLogger("there").warning("it is slow")
    warnings.warn("it is old", stacklevel=1)
    raise Failed("wrong numbers")


def leaves(options: Options, found: Found) -> None:
    """Without a word."""
    os._exit(3)


def waits(options: Options, found: Found) -> None:
    """Until it is killed; says which process it is."""
    found({"pid": os.getpid()})
    time.sleep(600)


def hangs(options: Options, found: Found) -> None:
    """With a process of its own that hangs, too."""
    started = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    found({"pid": started.pid, "tokens_per_s": 2.0})
    time.sleep(600)
