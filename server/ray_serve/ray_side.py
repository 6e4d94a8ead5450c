"""What of the replicas is Ray's: the deployment, the router that finds a replica by its name, and the transport.

Ray Serve starts, places, watches and replaces the replicas. An ingress holds one call to each (`open_session`, a streaming
generator of what the replica sends) and sends its own bytes by others (`receive`). Only this module and `serve_app.py`
import Ray; the deployments themselves are in `cohort_server.ray_app`, which every process can import by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Any, ClassVar

import ray
import structlog
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica
from ray.serve.schema import ApplicationStatus

from executors.contract import ConfigError, Unavailable
from server.ray_serve.placing import Placing
from server.ray_serve.replica import ReplicaEngine
from server.remote.replicas.node import drain_limit, pack_settings, unpack_settings, without_keys
from server.settings.table import Settings

log = structlog.get_logger("server")

ENGINE = "engine"
"""Name of the replicas' deployment."""
APP = "cohort"
"""Name of the Serve application, unless another one is given."""
OBJECT_STORE_BYTES = 200_000_000
"""Of a local Ray: nothing large goes through it."""
_MOST_CALLS = 10_000
"""Calls that a replica may have at once: the engine's own limits refuse long before."""
_HEALTH_PERIOD, _HEALTH_TIMEOUT = 2.0, 20.0
_POLL = 0.5
_PING_TIMEOUT = 10.0
_REACH_TIMEOUT = 5.0


class DeployFailed(ConfigError):
    """Ray Serve cannot start the replicas."""


class EngineReplica:
    """What a Serve replica does. Raises ConfigError or ExecutorError at its start."""

    async def __init__(self, settings: bytes) -> None:  # type: ignore[misc]  # Serve awaits it
        """`settings`: as bytes, so that no class of the application is unpickled before its folder is known."""
        self.name: str = serve.get_replica_context().replica_id.unique_id
        self._engine = ReplicaEngine(unpack_settings(settings))
        await self._engine.start()

    async def ping(self, replica: str) -> str:
        """Its name."""
        return self.name

    async def open_session(self, replica: str, session: str) -> AsyncGenerator[bytes, None]:
        """See `ReplicaEngine.open_session`."""
        if replica != self.name:
            raise LookupError(f"this is {self.name}, not {replica}")
        async with contextlib.aclosing(self._engine.open_session(session)) as pieces:
            async for piece in pieces:
                yield piece

    async def receive(self, replica: str, session: str, data: bytes) -> None:
        """See `ReplicaEngine.receive`."""
        if replica != self.name:
            raise LookupError(f"this is {self.name}, not {replica}")
        self._engine.receive(session, data)

    async def check_health(self) -> None:
        """Ray replaces a replica whose engine has given up."""
        if self._engine.failed:
            raise RuntimeError("the engine has given up: its executor cannot be restarted")

    async def __del__(self) -> None:
        await self._engine.stop()


class ByName(RequestRouter):  # type: ignore[misc]  # without Ray it counts as Any
    """Sends a call to the replica that its first argument names, or to any if that is empty. Which replica a request is for has
    been decided before (`server.remote.replicas.router`). It also tells the process which replicas there are."""

    replica_names: ClassVar[dict[tuple[str, str], frozenset[str]]] = {}
    """Names of replicas, by application and deployment. Written by Serve's router thread, read by any."""
    listeners: ClassVar[list[Callable[[], None]]] = []

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """See RequestRouter."""
        name = pending_request.args[0] if pending_request is not None and pending_request.args else ""
        if not name:
            return [candidate_replicas]
        return [[one for one in candidate_replicas if one.replica_id.unique_id == name]]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """See RequestRouter."""
        super().update_replicas(replicas)
        self._tell()

    def on_replica_actor_died(self, replica_id: Any) -> None:
        """See RequestRouter."""
        super().on_replica_actor_died(replica_id)
        self._tell()

    def _tell(self) -> None:
        key = self._deployment_id.app_name, self._deployment_id.name
        ByName.replica_names[key] = frozenset(one.unique_id for one in self.curr_replicas)
        for listener in list(ByName.listeners):
            listener()


def engine_deployment(replica: type, router: str, settings: Settings, placing: Placing) -> serve.Deployment:
    """The deployment of replicas. `router`: import path of ByName. One bundle with all that a replica needs: its ranks are
    processes of one machine, and Ray shows the replica's process all of its GPUs."""
    needs = {"CPU": placing.cpus} if placing.cpus else {}
    if placing.gpus:
        needs["GPU"] = float(placing.gpus)
    return serve.deployment(
        replica,
        name=ENGINE,
        num_replicas=placing.replicas,
        ray_actor_options={"num_cpus": placing.cpus, "num_gpus": placing.gpus},
        **({"placement_group_bundles": [needs], "placement_group_strategy": "STRICT_PACK"} if needs else {}),
        max_ongoing_requests=_MOST_CALLS,
        graceful_shutdown_timeout_s=drain_limit(settings),
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=_HEALTH_PERIOD,
        health_check_timeout_s=_HEALTH_TIMEOUT,
        max_constructor_retry_count=2,
        request_router_config=RequestRouterConfig(request_router_class=router),
        logging_config={"enable_access_log": False, "log_level": "WARNING"},
    )


def settings_bytes(settings: Settings) -> bytes:
    """Settings as an engine replica takes them, without keys."""
    return pack_settings(without_keys(settings))


class RayTransport:
    """See `server.remote.replicas.fleet.Transport`. One writer: the event loop."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._key = handle.app_name, handle.deployment_name
        self._streams = handle.options(stream=True)

    def names(self) -> set[str]:
        """See Transport."""
        return set(ByName.replica_names.get(self._key, ()))

    def on_change(self, changed: Callable[[], None]) -> None:
        """See Transport."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its listeners with it
                loop.call_soon_threadsafe(changed)

        ByName.listeners.append(tell)
        # Serve makes its router at the first call.
        self._pinging = loop.create_task(self._ping(), name="first call to a replica")

    async def _ping(self) -> None:
        while not self.names():
            with contextlib.suppress(RayError, TimeoutError):
                async with asyncio.timeout(_PING_TIMEOUT):
                    await self._handle.ping.remote("")
            await asyncio.sleep(_POLL)

    async def open_session(self, replica: str, session: str) -> AsyncGenerator[bytes, None]:
        """See Transport."""
        pieces = self._streams.open_session.remote(replica, session)
        try:
            async for piece in pieces:
                yield piece
        finally:
            pieces.cancel()

    async def send(self, replica: str, session: str, data: bytes) -> None:
        """See Transport."""
        await self._handle.receive.remote(replica, session, data)


# -- `cohort ray serve` --------------------------------------------------------------------------------------------------


def connect(address: str | None, num_cpus: float) -> bool:
    """Start a Ray of this process's own, without a dashboard, or join the one at `address`. Returns whether it is our own. Raises
    ConfigError."""
    quiet: dict[str, Any] = {"logging_level": "warning", "log_to_driver": True, "namespace": "cohort"}
    try:
        if address is not None:
            _check_reachable(address)
            ray.init(address=address, **quiet)
            return False
        ray.init(
            address="local",
            num_cpus=max(os.cpu_count() or 1, int(num_cpus + 0.999)),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            **quiet,
        )
    except (OSError, RayError, RuntimeError, ValueError) as error:
        raise (Unavailable if address else ConfigError)(
            f"Ray cannot be {'joined at ' + address if address else 'started'}: {error}"
        ) from None
    return True


def _check_reachable(address: str) -> None:
    """Raises OSError where nothing listens: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), _REACH_TIMEOUT).close()


def check_free(name: str) -> None:
    """Raises ConfigError if the cluster has an application of this name: to deploy would replace it."""
    if name in serve.status().applications:
        raise ConfigError(
            f"the cluster has a Serve application {name!r} already: choose another --ray-app, or end it with "
            f"ray.serve.delete({name!r}) if the command that deployed it has died"
        )


def deploy(application: serve.Application, name: str) -> DeploymentHandle:
    """Deploy, and return a handle before replicas are there. Nothing listens: the ingress is this process."""
    serve.start(
        proxy_location="Disabled", logging_config={"log_level": "WARNING", "enable_access_log": False}
    )
    [handle] = serve.run_many(
        [serve.RunTarget(application, name=name, route_prefix=None)],
        wait_for_ingress_deployment_creation=True,
        wait_for_applications_running=False,
    )
    return handle


async def watch_deployment(name: str) -> None:
    """Return once all replicas of an application run. Raises DeployFailed when Serve has given up."""
    while True:
        application = (await asyncio.to_thread(serve.status)).applications.get(name)
        if application is not None and application.status is ApplicationStatus.RUNNING:
            return
        if application is not None and application.status is ApplicationStatus.DEPLOY_FAILED:
            messages = [one.message for one in application.deployments.values() if one.message] or [
                application.message
            ]
            raise DeployFailed(f"the replicas cannot be started: {' '.join(messages[0].split())[-600:]}")
        await asyncio.sleep(_POLL)


def take_down(name: str | None, own: bool) -> None:
    """End the replicas of the application that this process has deployed, None if it has not, and Ray if it is our own."""
    with contextlib.suppress(RayError, RayServeException, RuntimeError, ValueError, TimeoutError):
        if own:
            serve.shutdown()
        elif name is not None:
            serve.delete(name)
    ray.shutdown()


def cluster_gpus() -> float:
    """GPUs of the cluster."""
    return float(ray.cluster_resources().get("GPU", 0.0))
