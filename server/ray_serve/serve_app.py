"""The ingress as a Serve deployment: Serve's proxies speak HTTP with clients, and this process runs the same application as
`cohort serve` behind them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Receive, Scope, Send

from server.ray_serve import ray_side
from server.ray_serve.ingress import Ingress, check_behind_proxy, check_settings
from server.ray_serve.placing import Placing, placing_of
from server.remote.replicas.node import drain_limit, pack_settings, unpack_settings
from server.settings.load import SettingsError, load
from server.settings.table import Settings
from server.startup.key_files import read_keys
from server.system import gc_tuning, logs

log = structlog.get_logger("server")

INGRESS = "ingress"
_MOST_REQUESTS = 10_000
"""Requests that an ingress may have open: its engines refuse long before."""
_OWN = {"replicas": 2, "ingresses": 1, "cpus_per_replica": None, "gpus_per_replica": None}
"""What `build` takes beside settings."""


class ServeIngress:
    """An ingress in a Serve replica. The application begins with Serve's lifespan event, on the event loop that answers."""

    def __init__(self, settings: bytes, engines: DeploymentHandle) -> None:
        """`settings`: as bytes, with keys."""
        _LATEST.append(_Application(unpack_settings(settings), engines))

    async def check_health(self) -> None:
        """It is well while its event loop answers: replicas that are gone come back, and until then /ready says so."""


class _Application:
    """The ASGI application of one ingress."""

    def __init__(self, settings: Settings, engines: DeploymentHandle) -> None:
        self._settings, self._engines = settings, engines
        self._app: ASGIApp
        self._ingress: Ingress
        self._loading: asyncio.Task[None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or begin and end with Serve's replica."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _start(self) -> None:
        settings = self._settings
        logs.configure(settings.log_level, settings.log_format)
        self._ingress = ingress = Ingress(settings, ray_side.RayTransport(self._engines))
        self._app = ingress.app(settings.host)
        self._loading = asyncio.create_task(self._load(), name="load")

    async def _load(self) -> None:
        try:
            await self._ingress.load()
        except Exception as error:
            log.exception("the ingress cannot serve", exc_info=error)
            raise
        gc_tuning.freeze_after_load()

    async def _stop(self) -> None:
        ingress = self._ingress
        ingress.state.draining = True
        await ingress.drain(self._settings.drain_timeout)
        self._loading.cancel()
        await asyncio.gather(self._loading, return_exceptions=True)
        await ingress.state.responses.close()
        await ingress.stop()
        if ingress.state.judge is not None:
            await ingress.state.judge.close()
        ingress.state.threads.close()


_LATEST: list[_Application] = []
"""The application that `ServeIngress` made, until Serve asks for it."""


def _application() -> ASGIApp:
    return _LATEST.pop()


def application(
    args: Mapping[str, Any],
    engines: Callable[[Settings, Placing], serve.Application],
    ingress: type[ServeIngress],
) -> serve.Application:
    """See `cohort_server.ray_app.build`."""
    own = {name: args.get(name, default) for name, default in _OWN.items()}
    for name in ("replicas", "ingresses"):
        if not isinstance(own[name], int) or own[name] < 1:
            raise SettingsError(f"{name}: a whole number of at least 1 (not {own[name]!r})")
    settings, _ = load({name: value for name, value in args.items() if name not in _OWN}, os.environ)
    check_settings(settings)
    check_behind_proxy(settings)
    read_keys(settings, terminal=False)
    cpus, gpus = own["cpus_per_replica"], own["gpus_per_replica"]
    if gpus is not None and (not isinstance(gpus, int) or gpus < 0):
        raise SettingsError(f"gpus_per_replica: a whole number of at least 0 (not {gpus!r})")
    placing = placing_of(settings, own["replicas"], cpus, gpus, ray_side.cluster_gpus())
    deployment = serve.deployment(
        serve.ingress(_application)(ingress),
        name=INGRESS,
        num_replicas=own["ingresses"],
        max_ongoing_requests=_MOST_REQUESTS,
        graceful_shutdown_timeout_s=drain_limit(settings),
        logging_config={"enable_access_log": False, "log_level": "WARNING"},
    )
    return deployment.bind(pack_settings(settings), engines(settings, placing))
