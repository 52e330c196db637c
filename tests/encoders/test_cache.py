"""The embedding cache: by example, and on random inputs against a naive twin."""

from __future__ import annotations

import random

import numpy as np
import pytest

from encoders.cache import ENTRY_BYTES, EmbeddingCache, embedding_bytes
from encoders.embedding import Embedding, RowsArray, image_layout


def embedding(name: str, rows: int = 1, fill: float = 0.0) -> Embedding:
    array = RowsArray(np.full((rows, 256), fill, np.float32), "float32")
    return Embedding("image", name, image_layout(rows), array)


ONE = embedding_bytes(embedding("x"))


def test_sizes_count_rows_and_overhead() -> None:
    assert embedding_bytes(embedding("a", 3)) == 3 * 1024 + ENTRY_BYTES
    with pytest.raises(TypeError, match="rows as an array"):
        embedding_bytes(Embedding("image", "a", image_layout(1), "reference"))
    with pytest.raises(ValueError, match="negative"):
        EmbeddingCache(-1)


def test_a_hit_is_the_same_object_and_counted() -> None:
    cache = EmbeddingCache(10 * ONE)
    first = embedding("a")
    assert cache.get("a") is None
    assert cache.put(first, 1.0)
    assert cache.get("a") is first
    assert "a" in cache
    assert "b" not in cache
    report = cache.report()
    assert (report["hits"], report["misses"]) == (1, 1)
    assert (report["items"], report["used_bytes"]) == (1, ONE)


def test_the_least_recently_used_goes_first_at_equal_cost() -> None:
    cache = EmbeddingCache(3 * ONE)
    for name in "abc":
        cache.put(embedding(name), 1.0)
    cache.put(embedding("d"), 1.0)  # a goes and sets the clock
    cache.get("b")
    cache.put(embedding("e"), 1.0)
    assert [name for name in "abcde" if name in cache] == ["b", "d", "e"]
    assert cache.stats.evictions == 2


def test_what_is_cheap_to_have_back_goes_first() -> None:
    cache = EmbeddingCache(2 * ONE)
    cache.put(embedding("dear"), 10.0)
    cache.put(embedding("cheap"), 0.1)
    cache.put(embedding("new"), 1.0)
    assert "dear" in cache
    assert "cheap" not in cache


def test_the_dear_one_ages_too() -> None:
    cache = EmbeddingCache(2 * ONE)
    cache.put(embedding("dear"), 10.0)
    for index in range(30):
        cache.put(embedding(str(index)), 1.0)
    assert "dear" not in cache


def test_what_is_larger_than_the_cache_is_not_kept() -> None:
    # case 60
    cache = EmbeddingCache(2 * ONE)
    cache.put(embedding("a"), 1.0)
    assert not cache.put(embedding("big", 9), 1.0)
    assert "a" in cache
    assert cache.stats.too_large == 1
    cache.check()


def test_two_of_three_quarters_make_progress() -> None:
    # case 60: nothing is pinned, so the second evicts the first and both are served
    cache = EmbeddingCache(4 * 1024 + ENTRY_BYTES)
    for name in ("a", "b", "a", "b"):
        assert cache.put(embedding(name, 3), 1.0)
        cache.check()
    assert len(cache) == 1


def test_the_same_digest_is_replaced() -> None:
    cache = EmbeddingCache(4 * 1024 + ENTRY_BYTES)
    cache.put(embedding("a", 3), 1.0)
    newer = embedding("a", 4)
    cache.put(newer, 1.0)
    assert cache.get("a") is newer
    assert cache.stats.evictions == 0
    cache.check()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda cache: setattr(cache, "_used", 1), "counted of"),
        (lambda cache: cache._heap.clear(), "cannot be evicted"),
        (lambda cache: cache._entries.update(b=cache._entries.pop("a")), "holds the embedding"),
        (lambda cache: setattr(cache._entries["a"], "size", 1), "size is not"),
    ],
)
def test_check_finds_damage(damage: object, message: str) -> None:
    cache = EmbeddingCache(2 * ONE)
    cache.put(embedding("a"), 1.0)
    cache.check()
    damage(cache)  # type: ignore[operator]
    with pytest.raises(AssertionError, match=message):
        cache.check()


class NaiveCache:
    """GreedyDual-Size as the paper states it: a scan for the minimum."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.kept: dict[str, tuple[Embedding, int, float]] = {}
        self.priority: dict[str, tuple[float, int]] = {}
        self.clock = 0.0
        self.time = 0

    def use(self, name: str) -> None:
        _, size, seconds = self.kept[name]
        self.time += 1
        self.priority[name] = (self.clock + seconds / size, self.time)

    def get(self, name: str) -> Embedding | None:
        if name not in self.kept:
            return None
        self.use(name)
        return self.kept[name][0]

    def put(self, item: Embedding, seconds: float) -> bool:
        size = embedding_bytes(item)
        if size > self.budget:
            return False
        self.kept.pop(item.digest, None)
        while sum(size for _, size, _ in self.kept.values()) + size > self.budget:
            victim = min(self.kept, key=lambda name: self.priority[name])
            self.clock = self.priority[victim][0]
            del self.kept[victim]
        self.kept[item.digest] = (item, size, seconds)
        self.use(item.digest)
        return True


@pytest.mark.parametrize("seed", range(30))
def test_equals_the_naive_twin(seed: int) -> None:
    rng = random.Random(seed)
    budget = rng.randrange(0, 40) * 1024
    cache, twin = EmbeddingCache(budget), NaiveCache(budget)
    for _ in range(400):
        name = f"n{min(rng.randrange(20), rng.randrange(20))}"
        if rng.random() < 0.5:
            assert cache.get(name) is twin.get(name)
        else:
            item = embedding(name, rng.randrange(1, 9))
            seconds = rng.choice([0.0, 0.1, 1.0, rng.random()])
            assert cache.put(item, seconds) == twin.put(item, seconds)
        cache.check()
        assert set(cache._entries) == set(twin.kept)
    assert len(cache._heap) <= 2 * len(cache) + 17
