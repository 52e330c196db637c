"""Rows of another node: fetched once, kept here, and lost without harm."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoders.embedding import Embedding, RowsArray, image_layout
from encoders.encode_once import EncodeOnce
from encoders.store import Lease, RowsLost, RowsReader, RowsRef, Store, StoreOptions, direct
from encoders.store.options import this_node
from encoders.store.remote import Fetched, fetch, read_file
from encoders.store.watch import Watch

A = "a" * 64


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Store]:
    """The store of another node, as far as references tell."""
    store = Store(tmp_path / "omniserve-far", 1 << 20, node="far")
    yield store
    store.close()


@pytest.fixture
def here(tmp_path: Path) -> StoreOptions:
    return StoreOptions(str(tmp_path / "omniserve-here"), 1 << 16)


def keep(store: Store, digest: str = A, rows: int = 3, seconds: float = 2.5) -> Embedding:
    array = RowsArray(np.arange(rows * 8, dtype=np.float32).reshape(rows, 8), "float32")
    kept = store.put(Embedding("image", digest, image_layout(rows), array), seconds)
    assert kept is not None
    return kept


class Network:
    """Fetches as `encoders.store.remote` does, without Ray."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    async def __call__(self, reference: RowsRef) -> Fetched:
        self.fetched.append(reference.digest)
        await asyncio.sleep(0.01)
        return read_file(reference.path, reference.digest)


async def test_remote_rows_are_fetched_once_and_kept(far: Store, here: StoreOptions) -> None:
    network = Network()
    reader = RowsReader(here, network)
    embedding = keep(far)
    opened = await asyncio.gather(*(reader.open(embedding) for _ in range(8)))
    opened += [await reader.open(embedding)]
    assert network.fetched == [A]
    for lease in opened:
        assert isinstance(lease, Lease)
        assert lease.head.seconds == 2.5  # what it costs has come along
        np.testing.assert_array_equal(lease.rows().data, np.arange(24).reshape(3, 8))
    assert reader.report()["leases"] == 9
    reader.close(opened)
    reader.close(opened)
    assert reader.report()["leases"] == reader.report()["leased_bytes"] == 0
    assert reader.store is not None
    assert A in reader.store
    reader.store.close()


async def test_remote_rows_larger_than_the_store_come_by_value(far: Store, tmp_path: Path) -> None:
    # case 60
    reader = RowsReader(StoreOptions(str(tmp_path / "omniserve-here"), 100), Network())
    rows = await reader.open(keep(far))
    assert isinstance(rows, RowsArray)
    assert len(rows) == 3
    reader.close([rows])


async def test_remote_rows_that_are_gone(far: Store, here: StoreOptions) -> None:
    network = Network()
    reader = RowsReader(here, network)
    embedding = keep(far)
    far._remove(A)
    answers = await asyncio.gather(
        *(reader.open(embedding) for _ in range(3)), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [RowsLost] * 3
    assert network.fetched == [A]


async def test_an_encoder_adopts_the_clip_of_another_node(far: Store, here: StoreOptions) -> None:
    once = EncodeOnce(0, None, here)
    once._reader._fetch = Network()
    embedding = keep(far)
    await once.adopt(embedding)
    found = once.find(A)
    assert found is not None
    assert found.rows.directory == here.directory
    await once.adopt(found)  # its own already
    once.check()
    once.close()


async def test_a_fetch_through_ray(far: Store) -> None:
    import ray

    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=80 << 20,
        log_to_driver=False,
        logging_level="error",
    )
    try:
        assert this_node() == ray.get_runtime_context().get_node_id()
        embedding = keep(far)
        reference = RowsRef(A, this_node(), str(far.directory), 3, 8, "float32")
        found = await fetch(reference)
        assert found.embedding.layout == embedding.layout
        assert found.seconds == 2.5
        np.testing.assert_array_equal(found.embedding.rows.data, np.arange(24).reshape(3, 8))
        # The actor of the direct transport, with its tensors sent as any other value.
        direct_embedding, seconds = await asyncio.to_thread(direct.receive, reference, None)
        assert (direct_embedding.layout, seconds) == (embedding.layout, 2.5)
        np.testing.assert_array_equal(direct_embedding.rows.data, np.arange(24).reshape(3, 8))
        far._remove(A)
        with pytest.raises(RowsLost, match="gone"):
            await fetch(reference)
        with pytest.raises(RowsLost, match="does not give"):
            await fetch(RowsRef(A, "1" * 56, str(far.directory), 3, 8, "float32"))
    finally:
        ray.shutdown()


async def test_direct_transport_is_used_where_it_works(
    far: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not direct.available()  # no NIXL here
    embedding = keep(far)
    found = read_file(embedding.rows.path, A)
    tried = []

    def receive(reference: RowsRef) -> tuple[Embedding, float]:
        tried.append(reference.digest)
        return found.embedding, found.seconds

    monkeypatch.setattr(direct, "available", lambda: True)
    monkeypatch.setattr(direct, "receive", receive)
    assert await fetch(embedding.rows) == found
    assert tried == [A]


async def test_encoded_items_leave_as_references(here: StoreOptions) -> None:
    once = EncodeOnce(0, None, here)
    encodes = 0

    async def encode() -> Any:
        nonlocal encodes
        encodes += 1
        from encoders.encode_once import Encoded

        array = RowsArray(np.ones((3, 8), np.float32), "float32")
        return Encoded(Embedding("image", A, image_layout(3), array), 0.5)

    first = await asyncio.gather(*(once.get(A, encode) for _ in range(5)))
    assert all(isinstance(item.rows, RowsRef) for item in first)
    assert await once.get(A, encode) == first[0]
    assert encodes == 1
    report = once.report()
    assert (report["cache"]["hits"], report["cache"]["misses"]) == (1, 5)
    assert report["single_flight"]["joined"] == 4
    once.check()
    once.close()


async def test_a_store_smaller_than_its_budget_is_noticed(
    here: StoreOptions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import os
    from types import SimpleNamespace

    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=10, f_frsize=1000))
    store = here.open()
    assert store.budget == 8000
    assert "has room for 8000" in caplog.text
    store.close()


async def test_violations_are_counted_in_the_background(
    here: StoreOptions, caplog: pytest.LogCaptureFixture
) -> None:
    often = StoreOptions(here.directory, here.budget, check_period_s=0.01)
    store = often.open()
    watch = Watch(often, store)
    watch.start()
    watch.start()
    keep(store)
    await asyncio.sleep(0.1)
    assert watch.violations == 0
    Path(store.directory / A).unlink()  # noqa: ASYNC240
    for _ in range(200):
        if watch.violations:
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert watch.violations == 1  # repaired
    assert "not consistent" in caplog.text
    watch.stop()
    store.close()
