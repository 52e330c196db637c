"""Engines with L2 and L3: the same answers as without any cache, through eviction, reload, a killed
process and a restart; and the four ways in which tiers can disagree about a prefix."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from llm.store.store import NodeStore
from llm.tiers import tier_stats
from tests.llm.engines import Engines, random_prompt
from tests.llm.tier_engine import CHANGES, PAGE, answer, conversations, tiers

pytestmark = pytest.mark.engine

Answers = list[dict[str, Any]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kv")


@pytest.fixture(scope="module")
def first_life(pocket_checkpoint: Path, store: Path) -> Answers:
    """What an engine answered that was killed in the middle of writing to the store."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.llm.tier_engine", str(pocket_checkpoint), str(store)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    try:
        seen: Answers = json.loads(next(line for line in process.stdout if line[:1] == b"["))
        time.sleep(1.0)
        assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    return seen


@pytest.fixture(scope="module")
def uncached(engines: Engines, first_life: Answers) -> Answers:
    """What an engine without any cache answers."""
    changes = CHANGES | {"extra_engine_args": {"disable_radix_cache": True}}
    engine = engines.get(mtp=True, adaptive=False, **changes)
    return [answer(engine, prompt) for prompt in conversations()]


@pytest.fixture
def second(engines: Engines, store: Path, uncached: Answers) -> Any:
    """An engine on the store of the one that was killed."""
    return engines.get(mtp=True, adaptive=False, tiers=tiers(store), **CHANGES)


def cached(answers: Answers, tier: str) -> int:
    return sum(a["cached"][tier] for a in answers)


def state(engine: Any) -> dict[str, Any]:
    (found,) = engine.loop.run_until_complete(tier_stats(engine.tokenizer_manager))
    return found


def forget(engine: Any) -> None:
    """Empty L1 and L2, once nothing is on its way to the store."""
    settle(engine)
    assert engine.flush_cache().success


def settle(engine: Any, interval_s: float = 0.3) -> None:
    """Wait until nothing is on its way and the store's size stands still."""
    before = -1
    for _ in range(200):
        found = state(engine)
        now = sum(tier["written"] for tier in found["store"].values())
        if now == before and not found["moving"]:
            return
        before = now
        time.sleep(interval_s)
    raise AssertionError("the store is still being written")


def test_through_eviction_and_reload_from_the_host(first_life: Answers, uncached: Answers) -> None:
    assert [a["tokens"] for a in first_life] == [a["tokens"] for a in uncached]
    assert cached(first_life, "device") > 0
    assert cached(first_life, "host") > 0


def test_mtp_drafts_as_well_after_hits_as_after_prefill(
    first_life: Answers, uncached: Answers
) -> None:
    assert [a["steps"] for a in first_life] == [a["steps"] for a in uncached]


def test_a_killed_writer_leaves_a_store_of_whole_pages(store: Path, first_life: Answers) -> None:
    left = NodeStore(
        memory=store / "memory", memory_bytes=2**23, disk=store / "disk", disk_bytes=2**28
    )
    left.check(deep=True)
    assert left.stats()["memory"]["entries"] > 0
    assert left.stats()["disk"]["entries"] > 0, "the memory tier never overflowed"
    left.close()


def test_after_a_restart_the_store_answers(second: Any, uncached: Answers) -> None:
    again = [answer(second, prompt) for prompt in conversations()]
    assert [a["tokens"] for a in again] == [a["tokens"] for a in uncached]
    assert [a["steps"] for a in again] == [a["steps"] for a in uncached]
    # Nothing but the page that holds the last token is computed of the first prompt.
    assert again[0]["cached"]["storage"] >= len(conversations()[0]) - 2 * PAGE
    assert cached(again, "storage") > 1000
    assert cached(again, "host") > 0


def test_counters_are_part_of_the_engines_state(second: Any) -> None:
    found = state(second)
    assert found["tokens"]["prompt"] > 0
    assert found["tokens"]["storage"] > 0
    assert found["host"]["swa"]["tokens"] > 0
    assert found["store"]["disk"]["errors"] == {}
    assert sum(tier["hits"] for tier in found["store"].values()) > 0


def test_no_compiler_is_needed_for_a_page_hash(second: Any) -> None:
    """SGLang's own hash would have been built and loaded by now."""
    for pid in second.get_all_child_pids():
        assert "hicache_hash_cpp" not in Path(f"/proc/{pid}/maps").read_text()


def test_case_1_window_kv_that_the_host_lacks_is_copied_when_it_is_computed_again(
    second: Any,
) -> None:
    """A prompt leaves window KV before its end only. A second one that ends inside has to compute
    the window again, on the device; evicted from there it must come back from the host."""
    long = random_prompt(400, 21)
    inside = 250
    answer(second, long, 1)
    answer(second, long[:inside] + random_prompt(60, 22), 1)
    for seed in range(31, 35):
        answer(second, random_prompt(450, seed), 1)
    third = answer(second, long[:inside] + random_prompt(60, 23), 1)
    assert sum(third["cached"].values()) >= inside // PAGE * PAGE - PAGE
    assert third["cached"]["host"] > 0


def test_case_2_what_the_device_lacks_comes_from_the_host(second: Any) -> None:
    prompt = random_prompt(300, 41)
    plain = answer(second, prompt)
    for seed in range(51, 54):
        answer(second, random_prompt(450, seed), 1)
    again = answer(second, prompt)
    assert again["cached"]["host"] > 0
    assert again["cached"]["storage"] == 0
    assert again["tokens"] == plain["tokens"]
    assert again["steps"] == plain["steps"]


def test_case_3_a_prefix_served_from_above_stays_in_the_store(second: Any) -> None:
    """Far more than the memory tier holds passes through it, while one prompt is asked again and
    again and found on the device or the host."""
    hot = random_prompt(300, 61)
    answer(second, hot, 1)
    for seed in range(71, 95):
        answer(second, random_prompt(120, seed), 1)
        # What is written after a touch pushes the touched pages down, and the tier has room for
        # a few prompts only: this one must have been written before.
        settle(second, 0.1)
        assert answer(second, hot, 1)["cached"]["storage"] == 0
    forget(second)
    before = state(second)["store"]["disk"]["hits"]
    assert answer(second, hot, 1)["cached"]["storage"] >= 300 - 2 * PAGE
    assert state(second)["store"]["disk"]["hits"] == before, "it had sunk to the disk"


def test_case_4_a_short_prompt_finds_the_beginning_of_a_longer_one(second: Any) -> None:
    prompt = random_prompt(200, 101)
    answer(second, prompt, 1)
    device = answer(second, prompt[:100] + random_prompt(50, 102), 1)
    assert device["cached"]["device"] == 64
    forget(second)
    stored = answer(second, prompt[:140] + random_prompt(50, 103), 1)
    assert stored["cached"]["storage"] == 128


def test_the_store_deleted_under_the_engine(second: Any, store: Path, uncached: Answers) -> None:
    forget(second)
    shutil.rmtree(store)
    store.write_text("in the way")
    prompts = conversations()[:5]
    answers = [answer(second, prompt) for prompt in prompts]
    assert [a["tokens"] for a in answers] == [a["tokens"] for a in uncached[:5]]
    assert cached(answers, "storage") == 0
    found = state(second)["store"]
    assert found["memory"]["errors"] != {}
    assert not found["memory"]["available"]

    store.unlink()
    time.sleep(5.5)
    forget(second)
    answers = [answer(second, prompt) for prompt in prompts]
    forget(second)
    answers = [answer(second, prompt) for prompt in prompts]
    assert cached(answers, "storage") > 0, "the store is not used again"
    assert [a["tokens"] for a in answers] == [a["tokens"] for a in uncached[:5]]
