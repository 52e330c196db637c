"""Rows that the engine maps from the store give what the same rows by value give."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from encoders.embedding import Embedding, RowsArray, image_layout
from encoders.store import RowsLost, RowsReader, Store, StoreOptions
from llm.rows import SharedRows, opened, pick


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    kept = Store(tmp_path / "omniserve-test", 1 << 20)
    yield kept
    kept.close()


def keep(store: Store, count: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Embedding:
    rows = torch.randn(count, 192, generator=torch.Generator().manual_seed(seed)) * 0.5
    array = RowsArray.from_tensor(rows.to(dtype))
    kept = store.put(Embedding("image", f"{seed:064x}", image_layout(count), array), 1.0)
    assert kept is not None
    return kept


def by_value(store: Store, embedding: Embedding) -> torch.Tensor:
    with store.open(embedding.digest) as lease:
        return lease.rows().tensor()


def across(message: Any) -> Any:
    """An item as another process gets it: SGLang's wire format, then a rank's own copy."""
    from sglang.srt.utils.msgpack_utils import _decode_shm_pointer_mm_data, enc_hook, ext_hook

    from llm import handover

    original = _decode_shm_pointer_mm_data
    import sglang.srt.utils.msgpack_utils as wire

    before = wire._is_shm_pointer_mm_data
    wire._is_shm_pointer_mm_data = lambda obj: handover._is_pointer(before, obj)
    wire._decode_shm_pointer_mm_data = lambda state: handover._decode(original, state)
    try:
        packed = enc_hook(message)
        arrived = ext_hook(packed.code, memoryview(packed.data))
    finally:
        wire._is_shm_pointer_mm_data = before
        wire._decode_shm_pointer_mm_data = original
    return pickle.loads(pickle.dumps(arrived))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
async def test_rows_arrive_as_the_files_own_memory(
    store: Store, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llm.handover import TRACE_ENV, MappedRows

    monkeypatch.setenv(TRACE_ENV, str(tmp_path / "trace"))
    embedding = keep(store, 9, dtype=dtype)
    reader = RowsReader(StoreOptions(str(store.directory), 1 << 20))
    leases = await reader.open_all([embedding])
    whole = pick(opened(leases[0]), 0, 9)
    assert isinstance(whole, SharedRows)
    # The file may be evicted as soon as it is open.
    expected = by_value(store, embedding).clone()
    os.unlink(embedding.rows.path)
    message = across(MappedRows(whole))
    rows = message.materialize()
    reader.close(leases)
    assert rows.dtype == dtype
    assert torch.equal(rows, expected)
    assert '"mapped": true' in (tmp_path / "trace").read_text()
    rows[0] = 7.0  # a write stays with its process
    assert reader.report()["leases"] == reader.report()["leased_bytes"] == 0
    assert reader.store is not None
    reader.store.close()


async def test_one_modality_of_a_clip(store: Store) -> None:
    from llm.handover import MappedRows

    embedding = keep(store, 6)
    with store.open(embedding.digest) as lease:
        shared = pick(opened(lease), 4, 2)
        assert isinstance(shared, SharedRows)
        assert len(shared) == 2
        rows = across(MappedRows(shared)).materialize()
    assert torch.equal(rows, by_value(store, embedding)[4:])


async def test_an_engine_on_several_nodes_gets_rows_by_value(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llm import handover

    embedding = keep(store, 6)
    with store.open(embedding.digest) as lease:
        shared = pick(opened(lease), 1, 3)
        monkeypatch.setattr(handover, "determine_tensor_transport_mode", lambda: "cuda_ipc")
        assert isinstance(handover.carried(shared), handover.MappedRows)
        monkeypatch.setattr(handover, "determine_tensor_transport_mode", lambda: "default")
        rows = handover.carried(shared)
    assert torch.equal(rows, by_value(store, embedding)[1:4])
    assert handover.carried(rows) is rows


async def test_a_lease_that_was_given_back_fails_one_request(store: Store) -> None:
    """An abort may overtake a request; its descriptor's number may be another file's by then."""
    from llm.handover import MappedRows

    first, second = keep(store, 3, seed=1), keep(store, 3, seed=2)
    lease = store.open(first.digest)
    shared = pick(opened(lease), 0, 3)
    assert isinstance(shared, SharedRows)
    number = lease.fileno()
    lease.close()
    message = across(MappedRows(shared))
    with pytest.raises(RuntimeError, match="RowsLost"):
        message.materialize()
    with store.open(second.digest) as other:
        assert other.fileno() == number
        message = across(MappedRows(shared))
        with pytest.raises(RuntimeError, match="holds"):
            message.materialize()


async def test_one_lost_item_gives_all_leases_back(store: Store) -> None:
    reader = RowsReader(StoreOptions(str(store.directory), 1 << 20))
    embeddings = [keep(store, 3, seed) for seed in range(3)]
    os.unlink(embeddings[2].rows.path)
    with pytest.raises(RowsLost):
        await reader.open_all(embeddings)
    assert reader.report()["leases"] == 0
    assert reader.store is not None
    reader.store.close()


async def test_without_a_store_references_are_refused(store: Store) -> None:
    with pytest.raises(RuntimeError, match="no store"):
        await RowsReader(None).open(keep(store, 3))
