"""Runs inside namespaces of its own (`unshare --net --mount`): a server, some requests, and what left the machine meanwhile.

    lo      up
    out     a tun device with the default routes: every packet for another machine is read here, and none is answered

Names are looked up at an address behind `out`, so a look-up is seen as well. Prints one JSON object.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.server_process import ServerProcess

_IDLE = 3.0
"""Seconds without a request, for what a server might do by itself from time to time."""
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_TCP, _UDP = 6, 17
NAMESPACES = ("unshare", "--net", "--mount")


def skip_where_impossible() -> None:
    """Skip the test that calls this, with the reason, where namespaces or a tun device cannot be had."""
    if lacking := [name for name in ("unshare", "ip", "mount") if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    probe = [*NAMESPACES, "ip", "tuntap", "add", "dev", "out", "mode", "tun"]
    if os.geteuid() != 0 or subprocess.run(probe, capture_output=True).returncode != 0:
        pytest.skip("needs root, and leave to make namespaces and a tun device")


def main(folder: Path) -> None:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", b"out", _IFF_TUN | _IFF_NO_PI))
    resolver = folder / "resolv.conf"
    resolver.write_text("nameserver 203.0.113.53\noptions timeout:1 attempts:1\n")
    for command in (
        "ip link set lo up",
        "ip addr add 192.0.2.2/24 dev out",
        "ip -6 addr add 2001:db8::2/64 dev out nodad",
        "ip link set out up",
        "ip route add default dev out",
        "ip -6 route add default dev out",
        f"mount --bind {resolver} /etc/resolv.conf",
    ):
        subprocess.run(command.split(), check=True)
    for name in [name for name in os.environ if name.startswith(("HF_", "COHORT_"))]:
        del os.environ[name]  # nothing keeps the server from reaching out
    with ServerProcess(["cohort-tiny"], folder) as server:
        body = {"messages": [{"role": "user", "content": "Count from 3 to 9."}], "max_tokens": 20}
        answer = server.post("/v1/chat/completions", body)
        wrong = server.post("/v1/chat/completions", {"model": "ORG/NAME", **body})
        for path in ("/v1/models", "/metrics", "/v1/executors", "/openapi.json"):
            assert server.get(path).status_code == 200
        time.sleep(_IDLE)
    found = {"statuses": [answer.status_code, wrong.status_code], "server": sent(device)}
    for name, address in (("ipv4", "203.0.113.1"), ("ipv6", "2001:db8:1::1")):
        with suppress(OSError):
            socket.create_connection((address, 80), 0.2)
        found[name] = sent(device)
    with suppress(OSError):
        socket.getaddrinfo("hub.example", 443)
    found["lookup"] = sent(device)
    print(json.dumps(found))


def sent(device: int) -> list[str]:
    """Where TCP and UDP packets went since the last call; the kernel's own neighbour discovery is none of these."""
    found = []
    while True:
        try:
            packet = os.read(device, 65536)
        except BlockingIOError:
            return sorted(set(found))
        protocol, target = (packet[9], packet[16:20]) if packet[0] >> 4 == 4 else (packet[6], packet[24:40])
        if protocol in (_TCP, _UDP):
            found.append(str(ipaddress.ip_address(target)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
