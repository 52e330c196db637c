"""Worlds with one transfer between tiers done wrong, and the message that must find it."""

from __future__ import annotations

from typing import Any

import torch

from tests.llm.tier_machine_world import TieredWorld


class OtherPageLoaded(TieredWorld):
    """Loading copies the neighbouring page of the host pool."""

    def __init__(self, page: int, window: int, drafting: bool) -> None:
        super().__init__(page, window, drafting)
        pool = self.host("kv")
        load = pool.load_to_device_per_layer

        def shifted(device: Any, host: torch.Tensor, *rest: Any, **more: Any) -> None:
            load(device, (host + page) % pool.size, *rest, **more)

        pool.load_to_device_per_layer = shifted


class WindowNotCopied(TieredWorld):
    """A back-up leaves the window's pages out."""

    def __init__(self, page: int, window: int, drafting: bool) -> None:
        super().__init__(page, window, drafting)
        self.host("swa").backup_from_device_all_layer = lambda *_, **__: None


class HostSlotLost(TieredWorld):
    """Emptying the host tier keeps a page back."""

    def forget(self, host: bool) -> None:
        super().forget(host)
        if host:
            self.host("swa").alloc(self.page)


class HostFreedWhileCached(TieredWorld):
    """A finished request gives a host page back that the tree has."""

    def finish(self, req: Any, beyond_stop: int) -> None:
        super().finish(req, beyond_stop)
        self.settle()
        pool = self.host("kv")
        used = pool.slot_used.nonzero().flatten()
        if len(used):
            pool.free(used[: self.page])


class StoreMixesPages(TieredWorld):
    """The store answers a request for several pages in another order."""

    def __init__(self, page: int, window: int, drafting: bool) -> None:
        super().__init__(page, window, drafting)
        store = self.storage.store
        get = store.get
        store.get = lambda keys, views: get(keys, views[::-1])


class StoreReadsNothing(TieredWorld):
    """The store says that it has read pages and has not."""

    def __init__(self, page: int, window: int, drafting: bool) -> None:
        super().__init__(page, window, drafting)
        self.storage.store.get = lambda keys, views: [True] * len(keys)


TIER_FAULTS = [
    (OtherPageLoaded, "a hit: full slots of other tokens"),
    (WindowNotCopied, "host swa: slots of other tokens"),
    (HostSlotLost, "a transfer between tiers does not end|host swa: .* are lost"),
    (HostFreedWhileCached, "host kv: pages .* have two owners"),
    (StoreMixesPages, "host (kv|swa): slots of other tokens"),
    (StoreReadsNothing, "host (kv|swa): slots of other tokens"),
]
