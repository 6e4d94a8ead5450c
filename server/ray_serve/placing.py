"""What Ray reserves for replicas."""

from __future__ import annotations

from dataclasses import dataclass

from executors.devices import needs_own
from server.settings.load import SettingsError
from server.settings.table import Settings


@dataclass(frozen=True, slots=True)
class Placing:
    """Where replicas go. `cpus`, `gpus`: what Ray reserves for each, on one node, ranks included."""

    replicas: int
    cpus: float
    gpus: int
    max_per_node: int | None = None


def placing_of(
    settings: Settings, replicas: int, cpus: float | None, gpus: int | None, cluster_gpus: float
) -> Placing:
    """What the replicas of these settings need. `cpus` None: one for each rank; `gpus` None: one for each rank, if `device` says
    so or says nothing and Ray knows of GPUs, `cluster_gpus` of them at this moment. Raises SettingsError."""
    ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size
    if gpus is None:
        on_gpu = cluster_gpus > 0 if settings.device in ("", "auto") else needs_own(settings.device)
        gpus = ranks if on_gpu else 0
    elif 0 < gpus < ranks:
        raise SettingsError(f"gpus_per_replica: {ranks} ranks need a GPU each (not {gpus})")
    elif gpus == 0 and needs_own(settings.device):
        raise SettingsError(f"gpus_per_replica: a replica on {settings.device} needs one at least (not 0)")
    return Placing(replicas, float(ranks) if cpus is None else cpus, gpus)
