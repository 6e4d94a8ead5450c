"""`cohort launch` becomes a client that talks to a live server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long

CLIENT = f"""#!{sys.executable}
import json, os, sys, urllib.request
body = {{"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 4, "messages": [{{"role": "user", "content": sys.argv[2]}}]}}
request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", json.dumps(body).encode(),
    {{"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["ANTHROPIC_AUTH_TOKEN"]}})
answer = json.load(urllib.request.urlopen(request))
print(json.dumps({{"pid": os.getpid(), "argv": sys.argv[1:], "answer": answer}}))
sys.exit(7)
"""


def test_a_client_takes_the_place_of_the_command(tmp_path: Path, tokenizer_dir: Path) -> None:
    client = tmp_path / "claude"
    client.write_text(CLIENT)
    client.chmod(0o755)
    cohort = str(Path(sys.executable).with_name("cohort"))
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "ANTHROPIC_API_KEY": "another server's",
    }
    from tests.e2e.conftest import ECHO

    args = [str(tokenizer_dir), *ECHO, "--served-model-name", "echo", "--api-key", "a-key"]
    with ServerProcess(args, tmp_path) as server:
        command = [
            cohort,
            "launch",
            "claude",
            "--url",
            server.url,
            "--api-key",
            "a-key",
            "--force",  # its context is too short for the client's own prompt
            "--",
            "-p",
            "Hi --there",
        ]
        started = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        out, err = started.communicate(timeout=60)
    assert started.returncode == 7, err
    told = json.loads(out)
    assert told["pid"] == started.pid, "the client is the process that was started"
    assert told["argv"] == ["-p", "Hi --there"]
    assert told["answer"]["model"] == "echo" and told["answer"]["usage"]["output_tokens"] > 0
    assert err.splitlines()[-1] == f"cohort: claude with echo at {server.url}"
