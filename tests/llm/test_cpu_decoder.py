"""The decoder kernel against a plain twin, and against itself in other batches."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.cpu.build import LEVELS, best_level, library
from llm.cpu.decoder import NativeDecoder, Unsupported, is_narrow
from llm.cpu.native import Kernel, pack, pack_gated
from tests.llm.decoder_model import (
    EPSILON,
    HIDDEN,
    Pools,
    make_batch,
    model,
    naive,
    native,
    parameters,
)


@settings(max_examples=40, deadline=None)
@given(
    window=st.sampled_from([1, 4, 70]),
    prefixes=st.lists(st.integers(0, 90), min_size=1, max_size=4),
    rows=st.integers(1, 9),
    ragged=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_the_naive_twin(
    window: int, prefixes: list[int], rows: int, ragged: bool, seed: int
) -> None:
    """Each request in two passes: its prefix, then new rows in one of the modes."""
    layers, norm = model(window)
    counts = [rows + (i % 2 if ragged else 0) for i in range(len(prefixes))]
    generator = torch.Generator().manual_seed(seed)
    inputs = [
        torch.randn(p + n, HIDDEN, generator=generator)
        for p, n in zip(prefixes, counts, strict=True)
    ]
    expected = [naive(layers, norm, x)[p:] for x, p in zip(inputs, prefixes, strict=True)]
    requests = torch.randperm(4, generator=generator)[: len(prefixes)].tolist()

    pools = Pools(layers, torch.float32, seed)
    decoder = NativeDecoder(native(), layers, norm, torch.float32)
    first = make_batch("extend", pools, requests, [0] * len(prefixes), prefixes)
    embeds = torch.cat([x[:p] for x, p in zip(inputs, prefixes, strict=True)])
    decoder.forward(embeds, first, pools)
    mode = "extend" if ragged else "decode" if rows == 1 else "verify"
    second = make_batch(mode, pools, requests, prefixes, counts)
    new = torch.cat([x[p:] for x, p in zip(inputs, prefixes, strict=True)])
    hidden, before_norm = decoder.forward(new, second, pools)
    torch.testing.assert_close(hidden, torch.cat(expected), atol=2e-4, rtol=2e-4)
    again = F.rms_norm(before_norm, (HIDDEN,), norm.weight, EPSILON)
    torch.testing.assert_close(hidden, again, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_its_batch(dtype: torch.dtype, cache: torch.dtype) -> None:
    """Bit for bit: prompt in one piece or many, rows one by one or together, alone or not."""
    window, length = 5, 75
    x = torch.randn(2, length, HIDDEN, generator=torch.Generator().manual_seed(1)).to(dtype)
    results = []
    for steps in ([length], [40, 4, 4, 1, 1, 25], [1] * length, [64, 11]):
        for together in (True, False):
            layers, norm = model(window)
            for layer in layers:
                for module in parameters(layer):
                    module.data = module.data.to(dtype)
            pools = Pools(layers, cache, 7)
            decoder = NativeDecoder(native(), layers, norm, dtype)
            rows: list[list[torch.Tensor]] = [[], []]
            for requests in [[0, 1]] if together else [[0], [1]]:
                at = 0
                for n in steps:
                    prefix, counts = [at] * len(requests), [n] * len(requests)
                    batch = make_batch("extend", pools, requests, prefix, counts)
                    embeds = torch.cat([x[r, at : at + n] for r in requests])
                    out = decoder.forward(embeds, batch, pools)[0]
                    for r, part in zip(requests, out.split(n), strict=True):
                        rows[r].append(part)
                    at += n
            results.append(torch.stack([torch.cat(parts) for parts in rows]))
    for other in results[1:]:
        assert torch.equal(results[0], other)


@pytest.mark.parametrize(
    "steps",
    [
        [("extend", [20, 1, 75, 44]), ("verify", [4, 4, 4, 4]), ("verify", [4, 4, 4, 4])],
        [("extend", [99])],
        [("extend", [3, 90, 2]), ("extend", [30, 2, 40])],
    ],
)
def test_a_row_does_not_depend_on_the_threads(steps: list[tuple[str, list[int]]]) -> None:
    """Bit for bit, with parts that end where a request ends and parts that cut one."""
    generator = torch.Generator().manual_seed(4)
    inputs = [torch.randn(sum(counts), HIDDEN, generator=generator) for _, counts in steps]
    results = []
    try:
        for threads in (1, 2, 3, 7):
            native().use_threads(threads)
            layers, norm = model(5)
            pools = Pools(layers, torch.float32, 7)
            decoder = NativeDecoder(native(), layers, norm, torch.float32)
            at = [0] * len(steps[0][1])
            outs = []
            for (mode, counts), x in zip(steps, inputs, strict=True):
                batch = make_batch(mode, pools, list(range(len(at))), at, counts)
                outs.append(decoder.forward(x, batch, pools)[0])
                at = [a + n for a, n in zip(at, counts, strict=True)]
            results.append(torch.cat(outs))
    finally:
        native().use_threads(1)
    for other in results[1:]:
        assert torch.equal(results[0], other)


def test_both_instruction_sets_agree() -> None:
    """Where the machine has AVX-512 it also has AVX2, which other machines run."""
    level = best_level()
    assert level is not None
    results = []
    for name in list(LEVELS)[list(LEVELS).index(level) :]:
        layers, norm = model(4)
        pools = Pools(layers, torch.float32, 3)
        decoder = NativeDecoder(Kernel(str(library(name))), layers, norm, torch.float32)
        batch = make_batch("extend", pools, [0, 1], [0, 0], [50, 7])
        x = torch.randn(57, HIDDEN, generator=torch.Generator().manual_seed(2))
        results.append(decoder.forward(x, batch, pools)[0])
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, atol=1e-4, rtol=1e-4)


def test_packing_takes_the_weights_and_keeps_their_numbers() -> None:
    layers, norm = model(4)
    assert all(is_narrow(p) for layer in layers for p in parameters(layer))
    layers[0].self_attn.o_proj.weight.data[0, 0] += 2**-20
    assert not is_narrow(layers[0].self_attn.o_proj.weight)
    NativeDecoder(native(), layers, norm, torch.float32)
    assert all(p.numel() == 0 for layer in layers for p in parameters(layer))


def test_linear_and_packing() -> None:
    generator = torch.Generator().manual_seed(5)
    for rows, columns, k in ((1, 5, 7), (6, 64, 33), (13, 100, 20)):
        x = torch.randn(rows, k, generator=generator)
        w = torch.randn(columns, k, generator=generator).bfloat16()
        for packed in (pack(w), pack(w.float())):
            got = native().linear(x, packed, columns)
            torch.testing.assert_close(got, x @ w.float().t(), atol=1e-4, rtol=1e-4)
    gate, up = torch.arange(40.0).view(20, 2), -torch.arange(40.0).view(20, 2)
    panels = pack_gated(gate, up)
    assert panels.shape == (2, 2, 32)
    assert panels[1, :, 3].tolist() == gate[19].tolist()
    assert panels[1, :, 16 + 3].tolist() == up[19].tolist()
    assert panels[1, :, 4:16].abs().sum() == 0


def test_what_the_kernel_cannot_do_is_named() -> None:
    layers, norm = model(4)
    with pytest.raises(Unsupported, match="float16"):
        NativeDecoder(native(), layers, norm, torch.float16)
    layers[1].mlp.config.n_group = 2
    with pytest.raises(Unsupported, match="expert groups"):
        NativeDecoder(native(), layers, norm, torch.float32)
    layers[1].mlp.config.n_group = 1
    layers[1].self_attn.total_num_heads = 12
    with pytest.raises(Unsupported, match="tensor parallelism"):
        NativeDecoder(native(), layers, norm, torch.float32)
    assert all(p.numel() for layer in layers for p in parameters(layer)), "weights were taken"


def test_a_cache_of_another_type_is_refused() -> None:
    layers, norm = model(4)
    pools = Pools(layers, torch.float16, 3)
    decoder = NativeDecoder(native(), layers, norm, torch.float32)
    batch = make_batch("decode", pools, [0], [3], [1])
    with pytest.raises(NotImplementedError, match="float16"):
        decoder.forward(torch.zeros(1, HIDDEN), batch, pools)


def test_the_best_level_fits_the_machine() -> None:
    avx2 = {"avx2", "fma", "bmi1", "bmi2", "f16c"}
    avx512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    assert best_level(avx2 | avx512) == "avx512"
    assert best_level(avx2) == "avx2"
    assert best_level({"sse2"}) is None
