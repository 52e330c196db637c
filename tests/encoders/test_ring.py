"""The ring: balance, few moves, the bound, determinism, and a naive twin."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from hashlib import blake2b
from itertools import pairwise
from math import ceil

import pytest

from encoders.ring import RecentLoad, Ring, bounded_order

KEYS = [f"{index:064x}" for index in range(4000)]


def names(count: int) -> list[str]:
    return [f"replica{index}" for index in range(count)]


def test_every_order_holds_every_replica_once() -> None:
    ring = Ring(names(7))
    for key in KEYS[:200]:
        assert sorted(ring.order(key)) == names(7)
    assert Ring([]).order("x") == []
    assert bounded_order([], {}) == []
    with pytest.raises(ValueError, match="points"):
        Ring(names(2), 0)


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_balance(count: int) -> None:
    ring = Ring(names(count))
    owned = Counter(ring.order(key)[0] for key in KEYS)
    assert max(owned.values()) < 1.4 * len(KEYS) / count
    assert min(owned.values()) > 0.6 * len(KEYS) / count


def test_only_the_keys_of_who_leaves_move() -> None:
    full, less = Ring(names(8)), Ring(names(7))
    moved = 0
    for key in KEYS:
        before, after = full.order(key), less.order(key)
        # Not only the owner: the whole order without the one that left.
        assert [name for name in before if name != "replica7"] == after
        moved += before[0] != after[0]
    assert 0 < moved < 1.4 * len(KEYS) / 8


def test_the_order_of_names_does_not_matter() -> None:
    shuffled = names(9)
    random.Random(1).shuffle(shuffled)
    one, two = Ring(names(9)), Ring([*shuffled, *shuffled])
    assert all(one.order(key) == two.order(key) for key in KEYS[:300])


def test_processes_agree() -> None:
    # case 24
    code = (
        "from encoders.ring import Ring\n"
        "ring = Ring(f'replica{i}' for i in range(5))\n"
        "print([ring.order(str(k)) for k in range(50)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert outputs == {f"{[Ring(names(5)).order(str(k)) for k in range(50)]}\n"}


@pytest.mark.parametrize("epsilon", [0.0, 0.15, 0.5])
def test_the_bound_holds_for_any_keys(epsilon: float) -> None:
    ring = Ring(names(5))
    rng = random.Random(3)
    loads: dict[str, float] = dict.fromkeys(names(5), 0.0)
    for index in range(1, 1500):
        key = KEYS[0] if rng.random() < 0.7 else rng.choice(KEYS)  # one very hot key
        loads[bounded_order(ring.order(key), loads, epsilon)[0]] += 1
        assert max(loads.values()) <= ceil((1 + epsilon) * index / 5)


def test_below_the_slack_affinity_alone_counts() -> None:
    order = ["b", "a", "c"]
    assert bounded_order(order, {"b": 7.0}, 0.15, slack=8.0) == order
    assert bounded_order(order, {"b": 8.0}, 0.15, slack=8.0) == ["a", "c", "b"]


def test_somebody_is_first_when_all_are_full() -> None:
    order = ["b", "a"]
    assert bounded_order(order, {"a": 50.0, "b": 50.0}, 0.0) == order
    assert bounded_order(order, {"a": 50.0, "b": 51.0}, 0.0) == ["a", "b"]


def naive_order(replicas: list[str], points: int, key: str) -> list[str]:
    """Every replica by the clockwise distance of its nearest point, measured one by one."""

    def place(text: str) -> int:
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")

    def distance(name: str) -> int:
        here = place(key)
        # A point at the key's own place is behind it.
        return min((place(f"{name}:{i}") - here - 1) % 2**64 for i in range(points))

    return sorted(replicas, key=distance)


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_naive_twin(seed: int) -> None:
    rng = random.Random(seed)
    replicas = [f"r{rng.randrange(10**6)}" for _ in range(rng.randrange(1, 9))]
    points = rng.choice([1, 3, 17])
    ring = Ring(replicas, points)
    for _ in range(20):
        key = f"{rng.getrandbits(256):064x}"
        expected = naive_order(sorted(set(replicas)), points, key)
        assert ring.order(key) == expected
        loads = {name: float(rng.randrange(6)) for name in replicas if rng.random() < 0.8}
        epsilon, slack = rng.choice([0.0, 0.25, 1.0]), rng.choice([0.0, 3.0])
        mean = (sum(loads.values()) + 1) / len(expected)
        limit = max(ceil((1 + epsilon) * mean), slack)
        fits = [loads.get(name, 0) + 1 <= limit for name in expected]
        # The first that fits is first, and what fits comes before what does not.
        found = bounded_order(expected, loads, epsilon, slack)
        assert any(fits)
        assert found[0] == expected[fits.index(True)]
        flags = [fits[expected.index(name)] for name in found]
        assert all(a >= b for a, b in pairwise(flags))
        assert sorted(found) == sorted(expected)


def test_recent_load_fades() -> None:
    recent = RecentLoad(100)
    for _ in range(1000):
        recent.add("a")
    assert sum(recent.loads().values()) == pytest.approx(100, rel=1e-3)
    for _ in range(100):
        recent.add("b")
    loads = recent.loads()
    assert loads["a"] == pytest.approx(100 / 2.718, rel=0.02)
    assert loads["b"] == pytest.approx(100 * (1 - 1 / 2.718), rel=0.02)


def test_recent_load_equals_its_definition_past_rescaling() -> None:
    recent, naive = RecentLoad(2), {"a": 0.0, "b": 0.0}
    rng = random.Random(0)
    for _ in range(2000):  # units double: rescaled several times
        name = rng.choice("ab")
        recent.add(name)
        naive = {key: value / 2 + (key == name) for key, value in naive.items()}
    for name in "ab":
        assert recent.loads()[name] == pytest.approx(naive[name])
    with pytest.raises(ValueError, match="window"):
        RecentLoad(0)


def test_who_is_new_starts_with_the_mean() -> None:
    recent = RecentLoad(1000)
    for name in "aaab":
        recent.add(name)
    recent.resize("abc")
    loads = recent.loads()
    assert loads["c"] == pytest.approx((loads["a"] + loads["b"]) / 2)
    recent.resize("c")
    assert list(recent.loads()) == ["c"]
    recent.resize([])
    assert recent.loads() == {}
