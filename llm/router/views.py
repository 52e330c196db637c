"""The views of this process, by deployment: the router keeps them, the gateway reads them."""

from __future__ import annotations

import threading

from llm.router.policy import RoutingPolicy
from llm.router.view import RouterView

_views: dict[str, RouterView] = {}
_lock = threading.Lock()


def view_key(application: str, deployment: str) -> str:
    """The name of a deployment's view."""
    return f"{application}#{deployment}"


def view_of(key: str, policy: RoutingPolicy, max_pairs: int) -> RouterView:
    """The view of a router that starts: a fresh one, whatever an earlier router had."""
    with _lock:
        _views[key] = RouterView(policy, max_pairs)
        return _views[key]


def find_view(key: str) -> RouterView | None:
    """The view of a deployment; None as long as no router has started for it."""
    return _views.get(key)
