"""The pipeline: concurrency, single encoding, cancellation, retries."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from app.stages import BadMedia, StageDied, StageFailed, StageFull
from encoders.digest import media_digest
from tests.app.fakes import World, audio_part, chat, image, text, video_part, world


async def ask(place: World, body: dict[str, Any]) -> bytes:
    response = await place.post(body)
    assert response.status_code == 200, response.text
    return response.content


async def test_every_modality_reaches_its_stages_in_order() -> None:
    place = world(images={"resize_max_pixels": 65536})
    await ask(place, chat(text(), image(b"1"), audio_part(b"2"), video_part(b"3"), image(b"4")))
    (embeddings,) = place.llm.embeddings
    assert [e.modality for e in embeddings] == ["image", "audio", "video", "image"]
    body = place.llm.seen[0][1]
    assert [part["type"] for part in body["messages"][0]["content"]] == ["text"] + ["media"] * 4
    assert [part.get("index") for part in body["messages"][0]["content"]] == [None, 0, 1, 2, 3]
    options = {"decode": {}, "encode": {"max_pixels": 65536}}
    assert ("options", options["encode"]) in place.images.seen
    assert embeddings[0].digest == media_digest("image", b"1", options, "identity")


async def test_the_rest_of_the_request_is_untouched() -> None:
    place = world()
    body = chat(temperature=0.3, tools=[{"type": "function"}], n=2, seed=7, unknown={"a": [1]})
    await ask(place, body)
    assert place.llm.seen[0][1] == body


async def test_items_are_encoded_concurrently() -> None:
    place = world()
    place.images.delay = place.video.delay = place.audio.delay = 0.1
    began = time.perf_counter()
    await ask(place, chat(*[image(bytes([i])) for i in range(8)], audio_part(), video_part()))
    assert place.images.most_running >= 8
    assert time.perf_counter() - began < 0.6  # one after the other would take 1.3 s


async def test_the_same_item_twice_is_encoded_once() -> None:
    place = world()
    place.images.delay = place.video.delay = 0.02
    body = chat(image(b"same"), image(b"other"), image(b"same"), video_part(), video_part())
    await ask(place, body)
    assert sorted(what for method, what in place.images.seen if method == "encode_image") == [
        b"other",
        b"same",
    ]
    assert [method for method, _ in place.video.seen].count("decode_clip") == 1
    (embeddings,) = place.llm.embeddings
    assert embeddings[0] is embeddings[2]
    assert embeddings[3] is embeddings[4]


async def test_a_known_sound_is_not_decoded_again() -> None:  # case 31
    place = world()
    await ask(place, chat(audio_part(b"one")))
    (first,) = place.llm.embeddings[0]
    place.audio.kept[first.digest] = first
    await ask(place, chat(audio_part(b"one"), audio_part(b"two")))
    assert place.llm.embeddings[1][0] is first
    decoded = [what for method, what in place.video.seen if method == "decode_sound"]
    assert decoded == [b"one", b"two"]


async def test_options_are_part_of_the_identity() -> None:  # case 29
    place = world()
    await ask(place, chat(video_part(fps=1), video_part(fps=2), {**video_part(), "fps": 2}))
    wishes = [what for method, what in place.video.seen if method == "sampling"]
    assert sorted(w["fps"] for w in wishes) == [1.0, 2.0]
    (embeddings,) = place.llm.embeddings
    assert embeddings[0].digest != embeddings[1].digest == embeddings[2].digest


async def test_a_clip_is_composed_of_picture_and_sound() -> None:
    place = world()
    await ask(place, chat(video_part()))
    (clip,) = place.llm.embeddings[0]
    kinds = [s.modality for s in clip.layout if hasattr(s, "modality")]
    assert kinds == ["video", "audio", "video", "audio"]
    assert len(clip.rows) == clip.n_rows
    assert place.audio.seen == [("encode_track", ((1, 16000), 8000))]


async def test_a_clip_without_sound() -> None:  # case 49
    place = world()
    place.video.with_sound = False
    await ask(place, chat(video_part()))
    assert not place.audio.seen
    assert all(
        getattr(s, "modality", "video") == "video" for s in place.llm.embeddings[0][0].layout
    )


async def test_one_bad_item_cancels_the_rest_and_names_its_place() -> None:  # case 64
    place = world()
    place.video.delay = 30
    began = time.perf_counter()
    response = await place.post(chat(text(), video_part(), image(b"bad")))
    assert time.perf_counter() - began < 5
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "messages[0].content[2]"
    assert error["message"].startswith("messages[0].content[2]: the data is not an image")
    assert place.video.cancelled == 1
    assert not place.llm.seen  # never an answer without the picture


async def test_a_clip_whose_frames_fail_cancels_its_sound() -> None:
    place = world()
    place.images.failures = [BadMedia("the frames are too large")]
    place.audio.delay = 30
    response = await place.post(chat(video_part()))
    assert response.status_code == 400
    assert place.audio.cancelled == 1


async def test_a_dead_encoder_is_asked_once_more() -> None:
    place = world()
    place.images.failures = [StageDied("image encoder", "gone")]
    await ask(place, chat(image()))
    assert [method for method, _ in place.images.seen].count("encode_image") == 2
    place.images.failures = [StageDied("image encoder", "gone")] * 2
    response = await place.post(chat(image(b"other")))
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert "image encoder is not available" in response.json()["error"]["message"]


@pytest.mark.parametrize("stage", ["images", "video", "audio", "llm"])
async def test_a_broken_stage_is_an_error_and_not_retried(stage: str) -> None:
    place = world()
    fake = getattr(place, stage)
    fake.failures = [StageFailed("the stage", "secret detail")]
    response = await place.post(chat(image(), video_part(), audio_part()))
    assert response.status_code == 500
    assert "secret detail" not in response.text
    assert response.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize("stage", ["images", "llm"])
async def test_a_full_stage_is_503_with_retry_after(stage: str) -> None:
    place = world(gateway={"retry_after_s": 7})
    getattr(place, stage).failures = [StageFull("the stage", "full")]
    response = await place.post(chat(image()))
    assert response.status_code == 503
    assert response.headers["retry-after"] == "7"
    assert response.json()["error"]["code"] == "overloaded"


async def test_media_have_a_deadline() -> None:
    place = world(gateway={"media_timeout_s": 0.05})
    place.images.delay = 30
    response = await place.post(chat(image()))
    assert response.status_code == 504
    assert place.images.cancelled == 1
    assert "0.05 seconds" in response.json()["error"]["message"]


async def test_the_whole_request_has_a_deadline() -> None:
    place = world(gateway={"request_timeout_s": 0.05})
    place.llm.delay = 30
    response = await place.post(chat())
    assert response.status_code == 504
    assert place.llm.closed == 1


async def test_many_requests_at_once_all_get_an_answer() -> None:  # case 63
    place = world(gateway={"max_concurrent_requests": 50})
    place.images.delay = 0.05
    answers = await asyncio.gather(
        *(place.post(chat(image(bytes([i])))) for i in range(200)), return_exceptions=True
    )
    codes = [answer.status_code for answer in answers if not isinstance(answer, BaseException)]
    assert len(codes) == 200
    assert set(codes) == {200, 503}
    assert codes.count(200) >= 50
    assert (await place.post(chat(image()))).status_code == 200


async def test_sampling_wishes_have_limits() -> None:
    place = world(video={"request_max_frames": 32, "request_max_fps": 5.0})
    for wish, reason in (
        ({"fps": 6}, "fps is 6; it must be at most 5"),
        ({"max_frames": 33}, "max_frames is 33; it must be at most 32"),
        ({"fps": 2, "num_frames": 4}, "exclude each other"),
    ):
        response = await place.post(chat(video_part(**wish)))
        assert response.status_code == 400
        assert reason in response.json()["error"]["message"]
    await ask(place, chat(video_part(num_frames=4)))
    assert place.video.seen[-1] == ("sampling", {"num_frames": 4, "max_frames": 32})
