"""Residual quantisation against the naive loop."""

from __future__ import annotations

import torch
from audio_reference import nearest_codes

from encoders.audio.quantizer import ResidualQuantizer

SIZES = (16, 16, 8, 4)


def quantizer(seed: int) -> ResidualQuantizer:
    built = ResidualQuantizer(SIZES, 12)
    generator = torch.Generator().manual_seed(seed)
    for book in built.codebooks:
        book.embed.data = torch.randn(book.embed.shape, generator=generator)
    return built


def test_codes_equal_the_naive_loop() -> None:
    built = quantizer(0)
    x = 2 * torch.randn(60, 12, generator=torch.Generator().manual_seed(1))
    codes = built(x)
    assert codes.shape == (60, 4)
    assert torch.equal(codes, nearest_codes(x, [b.embed.detach() for b in built.codebooks]))
    assert (codes.max(0).values < torch.tensor(SIZES)).all()


def test_of_equal_distances_the_lowest_index_wins() -> None:
    built = quantizer(0)
    book = built.codebooks[0].embed.data
    book[:] = book[3]
    assert built(torch.randn(9, 12))[:, 0].tolist() == [0] * 9


def test_bfloat16_latents_are_quantised_in_float32() -> None:
    built = quantizer(2)
    x = torch.randn(40, 12, generator=torch.Generator().manual_seed(3)).bfloat16()
    assert torch.equal(built(x), built(x.float()))


def test_names_are_those_of_the_checkpoint() -> None:
    names = [f"vq.layers.{stage}._codebook.embed" for stage in range(4)]
    assert list(quantizer(0).state_dict()) == names
