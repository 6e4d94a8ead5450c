"""Messages between ingress and replica beyond those between an API worker and its server (`server.remote.messages`).

ingress -> replica   Submit, Abort, Finish, CallBegins, CallEnds; Ask, Cancel; Forward, Disconnected, BodySent
replica -> ingress   ReplicaFacts; Deltas; Reply; Head, Body; Report
"""

from __future__ import annotations

import msgspec

from engine.request import EngineStats
from executors.contract import KvLayout
from server.remote import messages as m


class ReplicaFacts(msgspec.Struct, tag=20, array_like=True):
    """The first message of a replica: what it serves. `boot`: id of the machine's start, for the engine's clock is the machine's.
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
    | m.Disconnected
    | m.BodySent
)
ToIngress = ReplicaFacts | m.Deltas | m.Reply | m.Head | m.Body | Report
