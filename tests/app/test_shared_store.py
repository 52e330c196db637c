"""The gateway and the node's store: hits that decode nothing, clips, single flight, eviction."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.stages import BadMedia, RowsGone, StageFull
from encoders.digest import media_digest
from encoders.embedding import Embedding, RowsArray, audio_layout, image_layout
from encoders.store import RowsRef, Store, StoreOptions
from tests.app.fakes import World, audio_part, chat, image, rows, text, until, video_part, world


@pytest.fixture
def options(tmp_path: Path) -> StoreOptions:
    return StoreOptions(str(tmp_path / "omniserve-test"), 1 << 20)


@pytest.fixture
def store(options: StoreOptions) -> Iterator[Store]:
    opened = options.open()
    yield opened
    opened.close()


async def ask(place: World, *parts: dict[str, Any]) -> None:
    response = await place.post(chat(*parts))
    assert response.status_code == 200, response.text


def decodes(place: World) -> list[str]:
    """The calls that decode or encode anything."""
    stages = (place.images, place.audio, place.video)
    methods = [method for stage in stages for method, _ in stage.seen]
    return [m for m in methods if m.startswith(("encode", "decode"))]


async def test_a_hit_is_never_decoded(options: StoreOptions, store: Store) -> None:
    # case 31
    place = world(store=options)
    kept = []
    for kind, data, layout, encode in (
        ("image", b"picture", image_layout(2), {"max_pixels": 1048576}),
        ("audio", b"sound", audio_layout(2), {}),
    ):
        digest = media_digest(kind, data, {"decode": {}, "encode": encode}, "identity")
        found = store.put(Embedding(kind, digest, layout, rows(2)), 1.0)  # type: ignore[arg-type]
        assert found is not None
        kept.append(found)
    await ask(place, image(b"picture"), text(), audio_part(b"sound"))
    assert place.llm.embeddings == [kept]
    assert decodes(place) == []
    assert all(isinstance(embedding.rows, RowsRef) for embedding in kept)
    await ask(place, image(b"another"))
    assert decodes(place) == ["encode_image"]


async def test_a_clip_is_kept_whole_and_found_again(options: StoreOptions, store: Store) -> None:
    place = world(store=options)
    await ask(place, video_part(b"film"))
    first = list(decodes(place))
    assert sorted(first) == ["decode_clip", "encode_frames", "encode_track"]
    await ask(place, video_part(b"film"))
    assert decodes(place) == first
    (one,), (two,) = place.llm.embeddings
    assert one == two
    assert isinstance(one.rows, RowsRef)
    with store.open(one.digest) as lease:
        assert len(lease.rows()) == one.n_rows > 4
    # Another node that is asked for this digest learns of it.
    await until(lambda: ("adopt", one) in place.images.seen)
    # Other options are another clip; so is other content.
    await ask(place, video_part(b"film", fps=2), video_part(b"movie"))
    assert decodes(place).count("decode_clip") == 3


async def test_a_clip_of_another_node_is_not_decoded(options: StoreOptions) -> None:
    place = world(store=options)
    await ask(place, video_part(b"film"))
    (clip,) = place.llm.embeddings[0]
    elsewhere = world(store=StoreOptions(options.directory + "-two", 1 << 20))
    elsewhere.images.kept[clip.digest] = clip
    await ask(elsewhere, video_part(b"film"))
    assert decodes(elsewhere) == []
    assert elsewhere.llm.embeddings[0][0] is clip


@pytest.mark.parametrize("part", [video_part, audio_part, image])
async def test_concurrent_requests_for_one_item_encode_it_once(
    options: StoreOptions, part: Any
) -> None:
    # case 68
    place = world(store=options)
    place.images.delay = place.video.delay = 0.05
    await asyncio.gather(*(ask(place, part(b"same")) for _ in range(10)))
    once = [method for method in decodes(place) if method != "encode_track"]
    assert len(once) == len(set(once))
    assert len(place.llm.embeddings) == 10


async def test_a_leader_that_leaves_costs_the_others_nothing(options: StoreOptions) -> None:
    # case 68
    place = world(store=options)
    place.video.delay = 0.1
    tasks = [asyncio.create_task(ask(place, video_part(b"same"))) for _ in range(3)]
    await until(lambda: place.video.running == 1)
    tasks[0].cancel()
    await asyncio.gather(*tasks[1:])
    assert decodes(place).count("decode_clip") == 1
    assert place.video.cancelled == 0
    # With the last one the work ends, too.
    place.video.delay = 30
    last = asyncio.create_task(ask(place, video_part(b"other")))
    await until(lambda: place.video.running == 1)
    last.cancel()
    await until(lambda: place.video.running == 0)
    assert place.video.cancelled == 1
    stats = (await place.get("/stats")).json()
    assert stats["gateway"]["single_flight"]["in_flight"] == 0


async def test_a_bad_clip_fails_all_who_wait_and_is_not_kept(options: StoreOptions) -> None:
    place = world(store=options)
    place.video.delay = 0.05
    place.video.failures = [BadMedia("no frame can be decoded")]
    answers = await asyncio.gather(*(place.post(chat(text(), video_part(b"x"))) for _ in range(5)))
    assert [answer.status_code for answer in answers] == [400] * 5
    for answer in answers:
        error = answer.json()["error"]
        assert error["message"] == "messages[0].content[1]: no frame can be decoded"
    await ask(place, video_part(b"x"))


async def test_a_full_stage_fails_one_and_the_next_takes_over(options: StoreOptions) -> None:
    place = world(store=options)
    place.images.delay = 0.02
    place.images.failures = [StageFull("image encoder", "full")]
    answers = await asyncio.gather(*(place.post(chat(image(b"x"))) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 503]


async def test_rows_that_were_evicted_travel_by_value(options: StoreOptions, store: Store) -> None:
    # case 61: references pin nothing, so eviction may come in between
    place = world(store=options)
    await ask(place, video_part(b"film"))
    place.llm.failures = [RowsGone("language model", "evicted")]
    await ask(place, video_part(b"film"))
    by_reference, by_value = (embeddings[0] for embeddings in place.llm.embeddings[1:])
    assert isinstance(by_reference.rows, RowsRef)
    assert isinstance(by_value.rows, RowsArray)
    assert len(by_value.rows) == by_value.n_rows
    stats = (await place.get("/stats")).json()["gateway"]
    assert stats["leases"] == stats["leased_bytes"] == 0
    # Gone for good: decoded once more, and served.
    os.unlink(by_reference.rows.path)
    before = decodes(place).count("decode_clip")
    place.llm.failures = [RowsGone("language model", "evicted")]
    await ask(place, video_part(b"film"))
    assert decodes(place).count("decode_clip") == before + 1


async def test_rows_that_are_lost_twice_are_an_error_to_try_again(options: StoreOptions) -> None:
    place = world(store=options)
    place.llm.failures = [RowsGone("language model", "evicted")] * 2
    response = await place.post(chat(image(b"x")))
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"


async def test_a_clip_larger_than_the_store_is_served(tmp_path: Path) -> None:
    # case 60
    place = world(store=StoreOptions(str(tmp_path / "omniserve-test"), 100))
    for _ in range(2):
        await ask(place, video_part(b"film"))
    assert decodes(place).count("decode_clip") == 2
    assert isinstance(place.llm.embeddings[1][0].rows, RowsArray)
    stats = (await place.get("/stats")).json()["gateway"]["store"]
    assert (stats["too_large"], stats["used_bytes"]) == (2, 0)


async def test_statistics_of_every_stage(options: StoreOptions) -> None:
    place = world(store=options)
    place.audio.failures = [StageFull("audio encoder", "full")]
    stats = (await place.get("/stats")).json()
    assert stats["gateway"]["chats"] == 0
    assert stats["gateway"]["violations"] == 0
    assert stats["image encoder"] == {"running": 0, "batch_sizes": {"1": 2}}
    assert stats["audio encoder"] is None
    assert stats["video decoder"] == {"running": 0, "batch_sizes": {"1": 2}}
    stages = {"image encoder", "audio encoder", "video decoder", "language model"}
    assert set(stats) == {"gateway", *stages}
