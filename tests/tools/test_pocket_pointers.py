"""Attention is told which rows to look at."""

from __future__ import annotations

import torch

from tests.tools.geometries import tiny
from tools.pocket.train.pointers import LEAST, Pointer, pointer_loss
from tools.pocket.trunk.model import Layer, Trunk


def test_the_loss_is_the_share_of_attention_that_misses_the_targets() -> None:
    torch.manual_seed(0)
    text = tiny().text
    trunk = Trunk(text)
    layer = next(x for x in trunk.layers if not x.attention.window)  # type: ignore[union-attr]
    assert isinstance(layer, Layer)
    attention = layer.attention
    x = torch.randn(2, 16, text.hidden_size, requires_grad=True)
    angles = trunk.angles(16, sliding=False)
    assert pointer_loss(layer, x, angles, [[], []]).item() == 0.0
    pointers = [[], [Pointer(9, (2, 4)), Pointer(12, (2,), 0.25)]]
    loss = pointer_loss(layer, x, angles, pointers)
    q, k, _ = attention.project(layer.input_norm(x), angles)
    expected = []
    for group in range(attention.groups):
        head = group * (attention.heads // attention.groups)
        for at, targets, weight in ((9, [2, 4], 1.0), (12, [2], 0.25)):
            shares = (k[1, : at + 1, group] @ q[1, at, head]).softmax(0)
            expected.append(-weight * (shares[targets].sum() + LEAST).log())
    torch.testing.assert_close(loss, torch.stack(expected).sum() / (1.25 * attention.groups))
    optim = torch.optim.Adam(attention.parameters(), 0.01)
    for _ in range(100):
        optim.zero_grad()
        pointer_loss(layer, x.detach(), angles, pointers).backward()
        optim.step()
    assert pointer_loss(layer, x, angles, pointers).item() < 0.3 * loss.item()


def test_a_pointer_may_be_of_one_head() -> None:
    torch.manual_seed(0)
    text = tiny().text
    layer = next(x for x in Trunk(text).layers if not x.attention.window)  # type: ignore[union-attr]
    assert isinstance(layer, Layer)
    x, angles = torch.randn(1, 16, text.hidden_size), Trunk(text).angles(16, sliding=False)
    heads = layer.attention.heads
    apart = [pointer_loss(layer, x, angles, [[Pointer(9, (2,), head=h)]]) for h in range(heads)]
    assert len({loss.item() for loss in apart}) == heads > layer.attention.groups > 1
    firsts = torch.stack(apart[:: heads // layer.attention.groups])
    together = pointer_loss(layer, x, angles, [[Pointer(9, (2,))]])
    torch.testing.assert_close(firsts.mean(), together)
