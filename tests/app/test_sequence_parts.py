"""The ways in which clients send pictures as a clip."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from app.chat import inline_pictures, parse_chat
from app.errors import ApiError
from app.inline import read_item
from tests.app.fakes import chat, data_uri, video_part, world
from video.sequence import pack_sequence


def part(pictures: Any, **options: Any) -> dict[str, Any]:
    return {"type": "video", "video": pictures, **options}


async def decoded(*parts: dict[str, Any]) -> list[bytes]:
    place = world()
    response = await place.post(chat(*parts))
    assert response.status_code == 200, response.text
    assert [e.modality for e in place.llm.embeddings[0]] == ["video"] * len(parts)
    return [what for method, what in place.video.seen if method == "decode_clip"]


async def test_a_list_of_pictures() -> None:
    uris = [data_uri(name, "image/jpeg") for name in (b"one", b"two", b"three")]
    assert await decoded(part(uris)) == [pack_sequence([b"one", b"two", b"three"])]


async def test_pictures_in_one_data_uri() -> None:
    text = ",".join(base64.b64encode(name).decode() for name in (b"one", b"two"))
    uri = f"data:video/jpeg;base64,{text}"
    same = {"type": "video_url", "video_url": {"url": uri}}
    assert await decoded(same) == [pack_sequence([b"one", b"two"])]
    assert await decoded(part(uri)) == [pack_sequence([b"one", b"two"])]
    assert inline_pictures("DATA:video/JPEG;BASE64,eA==") == ("data:image/jpeg;base64,eA==",)
    assert inline_pictures("data:video/mp4;base64,eA==") == ()


async def test_a_video_part_may_be_one_url() -> None:
    assert await decoded(part(data_uri(b"clip", "video/mp4"))) == [b"clip"]


async def test_options_reach_the_decoder() -> None:
    place = world()
    uris = [data_uri(b"one", "image/png")]
    await place.post(chat(part(uris, fps=4), part(uris, fps=2), part(uris, fps=4)))
    wishes = [what["fps"] for method, what in place.video.seen if method == "sampling"]
    assert sorted(wishes) == [2.0, 4.0]


async def test_other_pictures_are_another_clip() -> None:
    place = world()
    one, two = data_uri(b"one", "image/png"), data_uri(b"two", "image/png")
    await place.post(chat(part([one, two]), part([two, one]), part([one, two])))
    a, b, c = place.llm.embeddings[0]
    assert a.digest == c.digest != b.digest


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (part([]), "video must be a URL or a list"),
        (part(None), "video must be a URL or a list"),
        (part(""), "video must be a URL or a list"),
        (part([3]), "video[0] must be a URL"),
        (part(["data:image/png;base64,eA==", ""]), "video[1] must be a URL"),
        (part(["data:image/png;base64,?"]), "base64 data is damaged"),
        (part(["data:image/png;base64,eA=="], frames=3), "unknown key 'frames'"),
        (part(["data:image/png;base64,eA=="], fps=1, num_frames=2), "exclude each other"),
        (part(["data:image/png;base64,eA=="] * 5), "5 pictures; at most 4 are accepted"),
        (video_part(fps=1000), "fps is 1000"),
    ],
)
async def test_mistakes_are_named(wrong: dict[str, Any], words: str) -> None:
    response = await world(video={"request_max_frames": 4}).post(chat(wrong))
    assert response.status_code == 400
    error = response.json()["error"]
    assert words in error["message"]
    assert error["param"].startswith("messages[0].content[0]")


async def test_the_pictures_share_one_limit() -> None:
    chat_of = parse_chat(chat(part([data_uri(bytes(60), "image/png")] * 2)), 4)

    class Nobody:
        async def fetch(self, url: str, max_bytes: int) -> bytes:
            raise AssertionError(url)

    assert len(await read_item(chat_of.items[0], Nobody(), 120)) > 120
    with pytest.raises(ApiError) as found:
        await read_item(chat_of.items[0], Nobody(), 119)
    assert found.value.status == 413


async def test_pictures_are_fetched_a_few_at_a_time() -> None:
    running = most = 0

    class Slow:
        async def fetch(self, url: str, max_bytes: int) -> bytes:
            import asyncio

            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.005)
            running -= 1
            return url.encode()

    urls = [f"https://example.org/{n}.jpg" for n in range(30)]
    item = parse_chat(chat(part(urls)), 4).items[0]
    assert await read_item(item, Slow(), 1 << 20) == pack_sequence([u.encode() for u in urls])
    assert 1 < most <= 8
