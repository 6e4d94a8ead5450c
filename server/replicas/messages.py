"""What ingress and replica say beyond what an API worker and its server say (`server.workers.messages`).

ingress -> replica   Submit, Abort, Finish, CallBegins, CallEnds; Ask, Cancel; Forward, Gone, Taken
replica -> ingress   Welcome; Deltas; Reply; Head, Body; Report
"""

from __future__ import annotations

import msgspec

from engine.request import EngineStats
from executors.contract import KvLayout
from server.workers import messages as m


class Welcome(msgspec.Struct, tag=20, array_like=True):
    """The first message of a replica. `boot`: id of the machine's start, for the engine's clock is the machine's.
    `clock`: that clock in seconds, for sequences may be given to the replica before it reports."""

    serve: m.Serve
    boot: str
    layout: KvLayout
    clock: float


class Report(msgspec.Struct, tag=21, array_like=True):
    """The engine's gauges, and its clock in seconds, sent often: a replica that sends none is lost."""

    stats: EngineStats
    clock: float


ToReplica = (
    m.Submit
    | m.Abort
    | m.Finish
    | m.CallBegins
    | m.CallEnds
    | m.Ask
    | m.Cancel
    | m.Forward
    | m.Gone
    | m.Taken
)
ToIngress = Welcome | m.Deltas | m.Reply | m.Head | m.Body | Report
