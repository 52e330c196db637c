"""Starting Ray on this machine, without the parts that one application on one machine never uses.

Stock `ray.init` also starts a dashboard (even when told not to, for usage statistics), a cluster
autoscaler and a log monitor: three Python processes, about half of the start-up time on two cores.
Here they are left out unless the settings ask for them. A cluster that runs already is joined as
it is.
"""

from __future__ import annotations

import os
from typing import Any

from app.settings.gateway import LocalSettings

# Replicas inherit these; a value that the user has set stays.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def prepare_environment(settings: LocalSettings) -> None:
    """Set what must be set before Ray is imported: it reads its environment at import."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in _THREADS:
        os.environ.setdefault(name, str(settings.threads))


def start_ray(settings: LocalSettings) -> bool:
    """Join the cluster of RAY_ADDRESS, or start a local one. Returns whether one was started."""
    import ray

    if os.environ.get("RAY_ADDRESS"):
        ray.init(namespace="serve", log_to_driver=True)
        return False
    options: dict[str, Any] = {
        "address": "local",
        "namespace": "serve",
        "include_dashboard": not settings.lean,
        "num_cpus": settings.num_cpus,
        "object_store_memory": settings.object_store_bytes,
        "log_to_driver": not settings.lean,
        "logging_level": "warning",
    }
    if settings.lean:
        _leave_out_helpers()
    ray.init(**options)
    return True


def _leave_out_helpers() -> None:
    """Replace the starters of Ray 2.60's helper processes; `tests/app` checks that they exist."""
    from ray._private import node, services

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def no_dashboard(*args: Any, **kwargs: Any) -> tuple[str, None]:
        return "", None

    services.start_api_server = no_dashboard
    node.Node.start_monitor = nothing
    node.Node.start_log_monitor = nothing
