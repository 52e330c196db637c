"""Starting Ray on this machine, without the parts that one application on one machine never uses.

Stock `ray.init` also starts a dashboard (even when told not to, for usage statistics), a cluster
autoscaler and a log monitor: three Python processes, and half of the time that Ray takes to start
on two cores. Here they are left out unless the settings ask for them. A cluster that runs already
is joined as it is.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from app.settings.gateway import LocalSettings

# Every process of the local cluster inherits these; a value that the user has set stays.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "app.proxy:middlewares",
    # Proxy and gateway talk gRPC: 2 ms less per request than through Ray's object store.
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    # Ray starts its workers at nice 15: any other process would starve a server on its machine.
    "RAY_worker_niceness": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def prepare_environment(settings: LocalSettings) -> None:
    """Set what Ray reads when it is imported, and what its processes inherit."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in _THREADS:
        os.environ.setdefault(name, str(settings.threads))


def start_ray(settings: LocalSettings) -> bool:
    """Join the cluster of RAY_ADDRESS, or start a local one. Returns whether one was started."""
    import ray

    if os.environ.get("RAY_ADDRESS"):
        ray.init(namespace="serve")
        return False
    if settings.lean:
        _leave_out_helpers()
    # Ray's notice that it has made its own token for its own ports.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    ray.init(
        address="local",
        namespace="serve",
        include_dashboard=not settings.lean,
        num_cpus=settings.num_cpus,
        object_store_memory=settings.object_store_bytes,
        log_to_driver=not settings.lean,
        logging_level="error",
    )
    return True


def _leave_out_helpers() -> None:
    """Replace the starters of Ray 2.60's helper processes."""
    from ray._private import node, services

    for owner, name in (
        (services, "start_api_server"),
        (node.Node, "start_monitor"),
        (node.Node, "start_log_monitor"),
    ):
        if not hasattr(owner, name):
            raise RuntimeError(
                f"this Ray has no {name}; set local.lean to false, or install the pinned version"
            )

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def no_dashboard(*args: Any, **kwargs: Any) -> tuple[str, None]:
        return "", None

    services.start_api_server = no_dashboard
    node.Node.start_monitor = nothing
    node.Node.start_log_monitor = nothing
