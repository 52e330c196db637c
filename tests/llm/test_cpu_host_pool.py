"""Transfers between device pools and host pools on a CPU, page by page."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from llm.cpu.host_pool import LAYOUT, load_layer, store_layers

LAYERS, DRAFTS, HEADS, K, V = 2, 1, 2, 6, 4


def pools(page: int, device_pages: int = 5, host_pages: int = 7) -> SimpleNamespace:
    """A host pool object with as much as the transfers use; K and V differ in width."""
    generator = torch.Generator().manual_seed(page)
    all_layers = LAYERS + DRAFTS
    # A device pool has a slot more than whole pages.
    slots = device_pages * page + 1

    def device(width: int) -> tuple[torch.Tensor, ...]:
        shape = (slots, HEADS, width)
        return tuple(torch.rand(shape, generator=generator) for _ in range(all_layers))

    def host(width: int) -> torch.Tensor:
        return torch.zeros(host_pages, all_layers, page, HEADS, width)

    return SimpleNamespace(
        page_size=page,
        layout=LAYOUT,
        target_layer_num=LAYERS,
        k_buffer=host(K),
        v_buffer=host(V),
        device_k_buffers=device(K),
        device_v_buffers=device(V),
    )


def slots(pages: list[int], page: int) -> torch.Tensor:
    return torch.cat([torch.arange(p * page, (p + 1) * page) for p in pages])


@pytest.mark.parametrize("page", [1, 4])
def test_a_page_comes_back_in_another_slot(page: int) -> None:
    pool = pools(page)
    before = [layer.clone() for layer in (*pool.device_k_buffers, *pool.device_v_buffers)]
    store_layers(pool, None, slots([6, 0], page), slots([1, 3], page), "direct")
    for layer in range(LAYERS + DRAFTS):
        expected = before[layer][3 * page : 4 * page]
        torch.testing.assert_close(pool.k_buffer[0, layer], expected, rtol=0, atol=0)

    for layer in range(LAYERS + DRAFTS):
        load_layer(
            pool,
            None,
            slots([6, 0], page),
            slots([4, 0], page),
            layer,
            "direct",
            is_draft=layer >= LAYERS,
        )
    after = (*pool.device_k_buffers, *pool.device_v_buffers)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(new[slots([4, 0], page)], old[slots([1, 3], page)])
        untouched = slots([1, 2, 3], page)
        assert torch.equal(new[untouched], old[untouched])


def test_a_layer_of_the_draft_comes_only_when_asked_for() -> None:
    pool = pools(1)
    before = pool.device_k_buffers[LAYERS].clone()
    load_layer(pool, None, slots([0], 1), slots([0], 1), LAYERS, "direct")
    assert torch.equal(pool.device_k_buffers[LAYERS], before)
    load_layer(pool, None, slots([0], 1), slots([0], 1), LAYERS, "direct", is_draft=True)
    assert not torch.equal(pool.device_k_buffers[LAYERS], before)


def test_another_layout_is_refused() -> None:
    pool = pools(1)
    pool.layout = "layer_first"
    with pytest.raises(ValueError, match="the layout page_first_direct, not layer_first"):
        store_layers(pool, None, slots([0], 1), slots([0], 1), "direct")
