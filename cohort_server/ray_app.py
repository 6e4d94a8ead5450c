"""Cohort as a Ray Serve application: `import_path: cohort_server.ray_app:build`.

Ray's processes find classes by their module's name, and `server` is such a name only once `rooms.enter` has run. So the
deployments are declared here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cohort_server import rooms

rooms.enter()

from ray import serve  # noqa: E402  # after the application's folder is the first

from server.ray_serve import ray_side, serve_app  # noqa: E402

if TYPE_CHECKING:
    from server.ray_serve.placing import Placing
    from server.settings.table import Settings

ROUTER = "cohort_server.ray_app:ByName"


class ByName(ray_side.ByName):
    """See `server.ray_serve.ray_side`."""


class Engine(ray_side.EngineReplica):
    """See `server.ray_serve.ray_side`."""


class Ingress(serve_app.ServeIngress):
    """See `server.ray_serve.serve_app`."""


def engines(settings: Settings, placing: Placing) -> serve.Application:
    """The replicas alone: the ingress is another process, that of `cohort ray serve`."""
    deployment = ray_side.engine_deployment(Engine, ROUTER, settings, placing)
    return deployment.bind(ray_side.settings_bytes(settings))


def build(args: Mapping[str, Any]) -> serve.Application:
    """The whole application, for `serve deploy` and KubeRay. `args`: settings of `cohort serve` by their names in a YAML file,
    and `replicas`, `cpus_per_replica`, `gpus_per_replica`, `ingresses`; the environment counts as well. Raises SettingsError."""
    return serve_app.application(args, engines, Ingress)
