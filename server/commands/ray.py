"""`cohort ray serve`: several replicas of a model behind one server, started and watched by Ray."""

from __future__ import annotations

import os
import secrets
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.commands.common import IGNORED_FLAGS, fail
from server.commands.options import ModelArgument, flag, with_settings
from server.settings.foreign.keys import remove_secrets
from server.settings.kinds import ENV_PREFIX
from server.settings.table import CONFIG, TABLE

if TYPE_CHECKING:
    from server.http.listener import Listener
    from server.settings.table import Settings

MISSING = "cohort ray serve needs Ray: pip install 'cohort-server[ray]'"

app = typer.Typer(
    name="ray",
    help="Serve a model from several replicas, with Ray.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"default_map": {"help": False}},
)


@app.callback()
def _ray() -> None:
    pass


@app.command(
    name="serve",
    help="Start several replicas of a model with Ray, and a server in front of them. A request goes to the replica that holds "
    "most of its prefix. If a replica ends, its streams go on at another one. Settings are those of `cohort serve`.",
)
@with_settings((*TABLE, CONFIG.name), short={"tensor_parallel_size": "-tp", "pipeline_parallel_size": "-pp"})
def ray_serve(
    model_dir: ModelArgument = None,
    replicas: Annotated[int, flag("Number of replicas [default: 2]", "--replicas")] = 2,
    ray_address: Annotated[
        str | None,
        flag(
            "Ray cluster to join, HOST:PORT or auto [default: a Ray of its own, on this machine]",
            "--ray-address",
        ),
    ] = None,
    cpus_per_replica: Annotated[
        float | None,
        flag("CPUs that Ray reserves for a replica [default: one for each rank]", "--cpus-per-replica"),
    ] = None,
    gpus_per_replica: Annotated[
        int | None,
        flag(
            "GPUs that Ray reserves for a replica [default: one for each rank, if the cluster has GPUs at the start]",
            "--gpus-per-replica",
        ),
    ] = None,
    ray_app: Annotated[str, flag("Name of the Serve application [default: cohort]", "--ray-app")] = "cohort",
    **flags: Any,
) -> None:
    """Start replicas and the server in front of them."""
    model_flag = flags["model"]
    if model_dir is not None and model_flag is not None and model_dir != model_flag:
        fail(f"two models are named: {model_dir} and --model {model_flag}")
    flags["model"] = model_flag if model_dir is None else model_dir
    if replicas < 1:
        fail(f"--replicas: a whole number of at least 1 (not {replicas})")
    if cpus_per_replica is not None and cpus_per_replica < 0:
        fail(f"--cpus-per-replica: at least 0 (not {cpus_per_replica:g})")

    if gpus_per_replica is not None and gpus_per_replica < 0:
        fail(f"--gpus-per-replica: at least 0 (not {gpus_per_replica})")

    from importlib.util import find_spec

    from server.http.listener import listen
    from server.settings.load import SettingsError, load
    from server.system.exit_codes import code_of

    if find_spec("ray") is None:
        fail(MISSING)
    try:
        chosen, notes = load(flags, os.environ)
        listener = listen(chosen.host, chosen.port, chosen.write_timeout)
    except SettingsError as error:
        fail(str(error), code_of(error))
    _set_environment(own=ray_address is None)
    with listener:
        sys.exit(
            _run(
                chosen,
                listener,
                [*IGNORED_FLAGS, *notes],
                _Deployment(replicas, ray_address, cpus_per_replica, gpus_per_replica, ray_app),
            )
        )


def _set_environment(*, own: bool) -> None:
    """What Ray reads when it is imported. This server sends no usage data, and neither does what it starts. A Ray of its
    own listens on loopback alone, and asks for a token that only its processes know. Settings have been read: Ray's processes
    inherit the rest, and keys are not for them."""
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        del os.environ[name]
    remove_secrets(os.environ)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if own:
        # The name is that of other systems, where it is off by default; it decides which address a node has.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


class _Deployment:
    """What the command line says of replicas."""

    def __init__(
        self, replicas: int, address: str | None, cpus: float | None, gpus: int | None, app: str
    ) -> None:
        self.replicas, self.address, self.cpus, self.gpus, self.app = replicas, address, cpus, gpus, app
        self.is_ours = False
        """Whether this process has deployed the application."""


def _run(settings: Settings, listener: Listener, notes: list[str], deployment: _Deployment) -> int:
    """Returns the exit code."""
    import asyncio

    try:
        from cohort_server import ray_app
        from server.ray_serve import ray_side
    except ModuleNotFoundError as error:
        fail(f"{MISSING} (there is no {error.name})")
    from executors.contract import ConfigError
    from server.ray_serve import ingress
    from server.ray_serve.placing import placing_of
    from server.settings.load import SettingsError
    from server.startup import bootstrap

    async def serve() -> None:
        placing = placing_of(
            settings, deployment.replicas, deployment.cpus, deployment.gpus, ray_side.cluster_gpus()
        )
        await asyncio.to_thread(ray_side.check_free, deployment.app)
        deployment.is_ours = True
        handle = await asyncio.to_thread(ray_side.deploy, ray_app.engines(settings, placing), deployment.app)
        transport = ray_side.RayTransport(handle)
        await ingress.serve(
            settings, transport, listener, deployment.replicas, ray_side.watch_deployment(deployment.app)
        )

    own: bool | None = None
    try:
        ingress.check_settings(settings)
        bootstrap.Bootstrap(settings)  # what cannot be served is told before Ray starts
        needed = placing_of(settings, deployment.replicas, deployment.cpus, deployment.gpus, 0.0)
        own = ray_side.connect(deployment.address, needed.cpus * deployment.replicas)
        return bootstrap.run_server(settings, notes, serve)
    except (SettingsError, ConfigError) as error:
        return bootstrap.refuse(error)
    finally:
        if own is not None:
            ray_side.take_down(deployment.app if deployment.is_ours else None, own)
