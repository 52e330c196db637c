"""Long clips part by part: order, overlap, bounded work, what is asked again, damage."""

from __future__ import annotations

from typing import Any

import pytest

from app.stages import BadMedia, StageDied
from encoders.embedding import Rows, RowsArray, modality_rows
from tests.app.fakes import World, chat, long_clip, video_part, world


def called(place: Any, method: str) -> list[Any]:
    return [what for name, what in place.seen if name == method]


async def ask(place: World, *parts: dict[str, Any]) -> Any:
    response = await place.post(chat(*parts))
    assert response.status_code == 200, response.text
    return place.llm.embeddings[-1]


def forget(place: World) -> None:
    for stage in (place.video, place.images, place.audio):
        stage.seen.clear()


async def test_parts_are_put_together_in_order() -> None:
    place = world()
    place.video.long = long_clip(parts=6, sound_parts=6)
    (clip,) = await ask(place, video_part())
    assert isinstance(clip.rows, RowsArray)
    (start, count), (_, heard) = modality_rows(clip.layout).values()
    vision = clip.rows.data[start : start + count, 0].tolist()
    audio = clip.rows.data[start + count : start + count + heard, 0].tolist()
    assert vision == [float(first) for first in range(0, 24, 4) for _ in range(2)]
    assert len(audio) == 6 * 12
    assert ("options", {"max_pixels": 1, "sampled_frames": 24}) not in place.images.seen
    assert all(o["sampled_frames"] == 24 for o in called(place.images, "options"))
    assert not called(place.images, "encode_frames")


async def test_work_is_bounded_and_stages_overlap() -> None:
    place = world(video={"parts_in_work": 3})
    place.video.long = long_clip(parts=12)
    place.video.delay = place.images.delay = 0.01
    together = []
    work = place.images.work

    async def watch(method: str, what: Any) -> None:
        together.append((place.video.running, place.images.running))
        await work(method, what)

    place.images.work = watch  # type: ignore[method-assign]
    await ask(place, video_part())
    assert place.video.most_running + place.images.most_running <= 6
    assert all(decoding + encoding <= 3 for decoding, encoding in together)
    assert any(decoding for decoding, _ in together)  # others decode while one is encoded


async def test_known_parts_are_not_decoded_again() -> None:
    place = world()
    place.video.long = long_clip(parts=4, sound_parts=3)
    (first,) = await ask(place, video_part(b"clip"))
    forget(place)
    # Without a store that keeps clips whole: the parts are found one by one.
    (again,) = await ask(place, video_part(b"clip"))
    assert not called(place.video, "decode_part")
    assert not called(place.video, "decode_sound_part")
    assert again.layout == first.layout
    assert (again.rows.data == first.rows.data).all()
    forget(place)
    # The same recording with a later end is another file, but its first parts have the same keys.
    place.video.long = long_clip(parts=6, sound_parts=5)
    await ask(place, video_part(b"longer clip"))
    assert called(place.video, "decode_part") == [16, 20]
    assert called(place.video, "decode_sound_part") == [6, 8]
    forget(place)
    place.video.long = long_clip(parts=4, name="other")
    await ask(place, video_part(b"other clip"))
    assert len(called(place.video, "decode_part")) == 4


async def test_other_pixels_are_other_parts() -> None:
    for budget in (65536, 131072):
        place = world(video={"max_pixels": budget})
        place.video.long = long_clip(parts=2)
        await ask(place, video_part())
        digests = set(place.images.kept)
        assert len(digests) == 2
        if budget == 65536:
            narrow = digests
    assert not digests & narrow


async def test_damaged_parts_cost_their_own_frames_and_are_not_kept() -> None:  # case 39
    place = world()
    place.video.long = long_clip(parts=4)
    place.video.lost = {4: 2, 8: 4}
    (clip,) = await ask(place, video_part())
    counts = [s.count for s in clip.layout if isinstance(s, Rows)]
    assert len(counts) == 5  # pairs: 2 + 1 + 0 + 2
    assert clip.rows.data[:, 0].tolist() == [0, 0, 0, 12, 12]  # encode_frames of the fake gives 0
    assert len(place.images.kept) == 2
    forget(place)
    await ask(place, video_part())
    assert called(place.video, "decode_part") == [4, 8]


async def test_a_clip_of_which_nothing_decodes() -> None:
    place = world()
    place.video.long = long_clip(parts=2)
    place.video.lost = {0: 4, 4: 4}
    response = await place.post(chat(video_part()))
    assert response.status_code == 400
    assert "no frame of the video can be decoded" in response.json()["error"]["message"]


async def test_a_dead_decoder_costs_one_retry() -> None:
    place = world()
    place.video.long = long_clip(parts=3)
    await ask(place, video_part())
    place.images.kept.clear()
    forget(place)
    begin = place.video.begin_clip

    async def die_later(*arguments: Any) -> Any:
        found = await begin(*arguments)
        place.video.failures.append(StageDied("video decoder", "gone"))
        return found

    place.video.begin_clip = die_later  # type: ignore[method-assign]
    await ask(place, video_part())
    assert len(called(place.video, "decode_part")) == 4


@pytest.mark.parametrize("stage", ["video", "images", "audio"])
async def test_a_failing_part_ends_the_clip(stage: str) -> None:
    place = world(video={"parts_in_work": 2})
    place.video.long = long_clip(parts=20, sound_parts=2)
    begin = place.video.begin_clip

    async def fail_later(*arguments: Any) -> Any:
        found = await begin(*arguments)
        getattr(place, stage).failures.append(BadMedia("it is broken"))
        return found

    place.video.begin_clip = fail_later  # type: ignore[method-assign]
    response = await place.post(chat(video_part()))
    assert response.status_code == 400
    assert "messages[0].content[0]: it is broken" in response.json()["error"]["message"]
    assert len(called(place.video, "decode_part")) < 5
    assert not place.llm.seen


async def test_a_track_that_ends_early_has_no_rows_behind_its_end() -> None:  # case 49
    place = world()
    place.video.long = long_clip(parts=4, sound_parts=1)
    (clip,) = await ask(place, video_part())
    heard = [s.count for s in clip.layout if isinstance(s, Rows) and s.modality == "audio"]
    assert sum(heard) == 12
    assert len(heard) == 2  # of eight pairs
