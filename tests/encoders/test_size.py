"""The size rule: golden values of mimo-v2.md section 12 and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoders.errors import MediaError
from encoders.vision.config import PixelBudget
from encoders.vision.size import grid_tokens, smart_resize

BUDGET = PixelBudget(8_192, 8_388_608, 8_192, 8_388_608, 268_435_456)


@pytest.mark.parametrize(
    ("source", "resized", "tokens"),
    [
        ((1080, 1920), (1088, 1920), 2040),
        ((720, 1280), (704, 1280), 880),
        ((224, 224), (224, 224), 49),
        ((20, 300), (32, 480), 15),
        ((48, 80), (96, 128), 12),
        ((64, 64), (96, 96), 9),
        ((16, 16), (96, 96), 9),
        ((2160, 3840), (2176, 3840), 8160),
        ((5000, 7000), (2432, 3424), 8132),
    ],
)
def test_golden_sizes(source: tuple[int, int], resized: tuple[int, int], tokens: int) -> None:
    size = smart_resize(*source, 32, BUDGET.image_min, BUDGET.image_max)
    assert size == resized
    assert grid_tokens((1, size[0] // 16, size[1] // 16), 2) == tokens


@pytest.mark.parametrize(
    ("frames", "tokens_per_pair", "total"),
    [(60, 2040, 61_200), (8, 2040, 8_160), (3600, 144, 259_200)],
)
def test_golden_clip_budgets(frames: int, tokens_per_pair: int, total: int) -> None:
    limit = BUDGET.frame_max(frames, 2)
    height, width = smart_resize(1080, 1920, 32, BUDGET.video_min, limit)
    per_pair = grid_tokens((1, height // 16, width // 16), 2)
    assert per_pair == tokens_per_pair
    assert per_pair * frames // 2 == total


def test_null_limits_fall_back_to_the_engines() -> None:
    budget = PixelBudget.from_dict({"image_min_pixels": None}, 32)
    assert (budget.image_min, budget.image_max) == (4 * 1024, 4096 * 1024)
    assert budget.video_total_max == 16384 * 1024


@pytest.mark.parametrize("size", [(10, 2001), (9, 2000), (1, 1), (1, 500), (500, 1), (1, 10**7)])
def test_thin_pictures_below_the_factor_are_scaled_up(size: tuple[int, int]) -> None:
    # case 9: the family's ratio rule binds only pictures whose short side reaches the factor.
    height, width = smart_resize(*size, 32, BUDGET.image_min, BUDGET.image_max)
    assert height >= 32
    assert width >= 32
    assert height * width <= BUDGET.image_max


def test_extreme_aspect_ratio_is_refused() -> None:
    with pytest.raises(MediaError, match="6500 x 32 exceeds the aspect ratio 200"):
        smart_resize(32, 6500, 32, BUDGET.image_min, BUDGET.image_max)
    with pytest.raises(MediaError, match="empty"):
        smart_resize(0, 5, 32, BUDGET.image_min, BUDGET.image_max)


@given(
    height=st.integers(1, 9000),
    width=st.integers(1, 9000),
    limit=st.integers(8, 8192).map(lambda tokens: tokens * 1024),
)
def test_sizes_are_whole_tokens_within_the_limit(height: int, width: int, limit: int) -> None:
    try:
        new = smart_resize(height, width, 32, 8_192, limit)
    except MediaError:
        assert max(height, width) > 200 * min(height, width)
        return
    assert new[0] % 32 == new[1] % 32 == 0
    assert min(new) >= 32
    assert new[0] * new[1] <= limit or new[0] * new[1] < 8_192 * 2
