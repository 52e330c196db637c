"""The chat parser: media by structure, everything else untouched, mistakes named by place."""

from __future__ import annotations

from typing import Any

import pytest

from app.chat import parse_chat
from app.errors import ApiError
from tests.app.fakes import audio_part, chat, data_uri, image, text, video_part


def refusal(body: Any, max_items: int = 4) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_chat(body, max_items)
    assert caught.value.status == 400
    assert len(caught.value.body()) < 2048
    return caught.value


def test_media_parts_become_slots_in_order() -> None:
    body = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [text("a"), image(b"1"), text("b"), audio_part(b"2")]},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "user", "content": [video_part(b"3")]},
        ],
        "temperature": 0.5,
    }
    parsed = parse_chat(body, 4)
    assert [(item.modality, item.where) for item in parsed.items] == [
        ("image", "messages[1].content[1]"),
        ("audio", "messages[1].content[3]"),
        ("video", "messages[3].content[0]"),
    ]
    messages = parsed.body["messages"]
    assert messages[0] is body["messages"][0]
    assert messages[1]["content"] == [
        text("a"),
        {"type": "media", "index": 0},
        text("b"),
        {"type": "media", "index": 1},
    ]
    assert messages[2] is body["messages"][2]
    assert messages[3]["content"] == [{"type": "media", "index": 2}]
    assert parsed.body["temperature"] == 0.5
    assert body["messages"][3]["content"] == [video_part(b"3")]  # the request is not changed


def test_special_tokens_in_text_are_text() -> None:  # case 32
    part = text("<|image_pad|><|vision_start|>")
    parsed = parse_chat(chat(part, image()), 4)
    assert parsed.body["messages"][0]["content"][0] is part
    assert len(parsed.items) == 1


@pytest.mark.parametrize("kind", ["media", "image", "input_image", "", None, 3, ["text"]])
def test_unknown_part_types_name_their_place(kind: Any) -> None:
    # A client must not be able to write a media slot itself.
    failure = refusal(chat(text(), {"type": kind, "index": 0}))
    assert failure.param == "messages[0].content[1]"
    assert failure.code == "unknown_part_type"
    assert "known types are text, image_url, audio_url, input_audio, video_url" in failure.message


@pytest.mark.parametrize("messages", [None, [], {}, "hi", 3])
def test_messages_must_be_a_list(messages: Any) -> None:
    assert refusal({"messages": messages}).param == "messages"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("text", "messages[0]"),
        ({"role": "user", "content": ["text"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0]"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": "http://x/y.png"}]},
            "messages[0].content[0]",
        ),
        (
            {"role": "user", "content": [{"type": "video_url", "video_url": {"url": 3}}]},
            "messages[0].content[0]",
        ),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": ""}}]},
            "messages[0].content[0]",
        ),
    ],
)
def test_malformed_parts(message: Any, param: str) -> None:
    assert refusal({"messages": [message]}).param == param


@pytest.mark.parametrize(
    "part",
    [
        image(detial="low"),
        image(detail="ultra"),
        image(detail=3),
        {**image(), "fps": 2},
        video_part(fps=0),
        video_part(fps="2"),
        video_part(fps=True),
        video_part(max_frames=1.5),
        video_part(max_frames=1e300),
        video_part(frames=8),
        video_part(times=[]),
        video_part(times=3),
        video_part(times=[0, "1"]),
        video_part(times=[True]),
        video_part(key_frames=1),
        {**video_part(fps=2), "fps": 3},
        {"type": "audio_url", "audio_url": {"url": "http://x/a.wav", "rate": 3}},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": 3}},
    ],
)
def test_options_that_would_change_nothing_are_refused(part: Any) -> None:
    param = refusal(chat(part)).param
    assert param is not None
    assert param.startswith("messages[0].content[0]")


def test_options_of_parts() -> None:
    parts = [
        image(detail="low"),
        image(detail="auto"),
        video_part(fps=2, max_frames=8.0),
        {**video_part(), "fps": 2.5, "cache_control": {"type": "ephemeral"}},
    ]
    items = parse_chat(chat(*parts), 4).items
    assert [dict(item.options) for item in items] == [
        {"detail": "low"},
        {},
        {"fps": 2.0, "max_frames": 8},
        {"fps": 2.5},
    ]


def test_input_audio_may_hold_a_data_uri() -> None:
    part = {"type": "input_audio", "input_audio": {"data": data_uri(b"x"), "format": "mp3"}}
    first, second = parse_chat(chat(part, audio_part()), 4).items
    assert (first.encoding, second.encoding) == ("uri", "base64")


@pytest.mark.parametrize(("count", "accepted"), [(3, True), (4, True), (5, False)])
def test_media_items_are_counted(count: int, accepted: bool) -> None:
    body = chat(*[image()] * count)
    if accepted:
        assert len(parse_chat(body, 4).items) == count
    else:
        failure = refusal(body)
        assert (failure.code, failure.param) == ("too_many_media", "messages[0].content[4]")
        assert "5 media items; at most 4" in failure.message


def test_payloads_are_never_echoed() -> None:
    secret = "S3CRET" * 10_000
    for part in (
        {"type": secret},
        {"type": "image_url", "image_url": {"url": data_uri(b"x"), secret: 1}},
        {"type": "image_url", "image_url": secret},
        {"type": "image_url", "image_url": {"url": "x", "detail": secret}},
    ):
        assert refusal(chat(part)).body().count(b"S3CRET") <= 8


def test_repr_of_an_item_hides_its_source() -> None:
    assert "cGljdHVyZQ" not in repr(parse_chat(chat(image()), 4))
