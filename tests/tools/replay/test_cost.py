"""Cost model, geometry and pools against the numbers they are made from."""

from __future__ import annotations

import numpy as np
import pytest

from tools.replay import cost
from tools.replay.cost import DecodeReading, PrefillReading, fit_decode, fit_prefill, h200_node
from tools.replay.geometry import PRO, V25, pools


def test_kv_sizes_are_the_published_ones() -> None:
    assert (V25.full_bytes, V25.window_bytes) == (23_040, 199_680)
    assert (PRO.full_bytes, PRO.window_bytes) == (51_200, 307_200)
    assert V25.without_window().full_bytes == 222_720
    assert PRO.without_window().full_bytes == 358_400
    million = 1 << 20
    assert V25.without_window().sequence_bytes(million) / V25.sequence_bytes(million) > 9.6


def test_the_h200_model_gives_the_published_figures_back() -> None:
    model = h200_node(V25)
    near = cost.CHUNK / model.prefill_s(cost.CHUNK, cost.CHUNK, 0)
    far_pairs = cost.pairs(cost.CHUNK, cost.FAR_PREFIX)
    far = cost.CHUNK / model.prefill_s(cost.CHUNK, cost.CHUNK, far_pairs)
    assert far / near == pytest.approx(cost.FAR_THROUGHPUT)
    requests, context = cost.DECODE_REQUESTS, cost.DECODE_CONTEXT
    rate = model.accept / model.decode_s(requests, requests * context)
    assert rate == pytest.approx(cost.DECODE_TOKENS_S)


def test_pools_follow_the_engines_rule() -> None:
    found = pools(V25, 8, cost.H200_BYTES, 0.65, 0.3, 1000)
    room = 8 * cost.H200_BYTES * 0.65 - V25.weight_bytes
    assert found.full_tokens == int(room / 82_944)
    assert found.windows == (int(found.full_tokens * 0.3) - 1000) // 129
    with pytest.raises(ValueError, match="2 GPUs leave"):
        pools(V25, 2, cost.H200_BYTES, 0.65, 0.3, 1000)
    with pytest.raises(ValueError, match="raise window_ratio"):
        pools(V25, 8, cost.H200_BYTES, 0.65, 0.01, 10**6)


def test_fits_find_the_constants_that_made_the_readings() -> None:
    rng = np.random.default_rng(0)
    truth = cost.CostModel(0.003, 2e-4, 1e-7, 0.02, 1e-3, 1e-6, fixed_s=0.01)
    readings = [
        PrefillReading(t, h, truth.fixed_s - truth.step_s * 0 + truth.request_s(t, h, 512) - 0.003)
        for t, h in rng.integers((200, 0), (4000, 199), (30, 2)).tolist()
    ]
    fixed, step, token, pair = fit_prefill(readings, 512)
    assert (fixed, step) == (pytest.approx(0.01), pytest.approx(0.003))
    assert (token, pair) == (pytest.approx(2e-4), pytest.approx(1e-7))
    known = fit_prefill(readings, 512, 0.003)
    assert known == pytest.approx((0.01, 0.003, 2e-4, 1e-7))
    decode = [DecodeReading(b, c, truth.decode_s(b, c)) for b, c in ((1, 10), (2, 900), (8, 50))]
    assert fit_decode(decode) == pytest.approx((0.02, 1e-3, 1e-6))
    # A coefficient that noise would push below zero is left out.
    flat = [PrefillReading(t, 0, 1.0 - t * 1e-6) for t in (100, 200, 300, 400)]
    assert min(fit_prefill(flat, 512)) >= 0
    with pytest.raises(ValueError, match="at least 4"):
        fit_prefill(readings[:3], 512)
    with pytest.raises(ValueError, match="at least 3"):
        fit_decode(decode[:2])
