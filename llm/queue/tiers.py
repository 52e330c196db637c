"""Service tiers of requests, as priorities of the engine's queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TIERS: Mapping[str, int] = {"flex": -1, "auto": 0, "default": 0, "scale": 0, "priority": 1}
# Beyond, a client could push its requests ahead of everybody's for as long as it likes.
MOST = 1


def tier_of(body: Mapping[str, Any]) -> int:
    """The tier of a chat request: `service_tier`, else SGLang's `priority` within -1..1, else 0.

    Raises ValueError for a tier that does not exist or a priority that is no whole number.
    """
    name = body.get("service_tier")
    if name is not None:
        if not isinstance(name, str) or name not in TIERS:
            raise ValueError(f"service_tier must be one of {', '.join(TIERS)}")
        return TIERS[name]
    priority = body.get("priority")
    if priority is None:
        return 0
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ValueError("priority must be a whole number")
    return max(-MOST, min(MOST, priority))
