"""The parsed chat: which content parts are media, and where each one stands.

Media is bound by structure: a media part becomes `{"type": "media", "index": k}` in the body that
goes to the language model, and `k` names an item of `ParsedChat.items`. A client cannot send such a
part itself, and text is never searched for placeholders. Everything that is not a media part is
passed on untouched; the language-model stage checks it with SGLang's own request classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from app.errors import bad_request, quoted
from encoders.embedding import Modality

# Parts without media that SGLang's request classes know; they pass through untouched.
TEXT_PARTS = frozenset({"text", "refusal", "thinking", "reasoning", "tool_reference"})
_MEDIA_PARTS: dict[str, Modality] = {
    "image_url": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "video_url": "video",
    "video": "video",
}
_DETAILS = ("auto", "low", "high")
_JPEG_SEQUENCE = "data:video/jpeg;base64,"
# Keys that clients add to any part and that change nothing about the answer.
_IGNORED_KEYS = frozenset({"type", "cache_control"})
_VIDEO_KEYS = frozenset({"fps", "num_frames", "min_frames", "max_frames", "times", "key_frames"})


@dataclass(frozen=True)
class MediaItem:
    """One media part: where it stands, where its bytes come from, and how to read them.

    `source` is an http(s) URL, a data URI, or base64 text when `encoding` is "base64". A clip that
    is sent as pictures has their sources in `pictures` and none of its own. `options`
    holds `detail` for an image and the sampling wishes for a video, as given.
    """

    modality: Modality
    message: int
    part: int
    source: str = field(repr=False)
    encoding: Literal["uri", "base64"] = "uri"
    options: Mapping[str, Any] = field(default_factory=dict)
    pictures: tuple[str, ...] = field(default=(), repr=False)

    @property
    def where(self) -> str:
        return place(self.message, self.part)


@dataclass(frozen=True)
class ParsedChat:
    """A chat body ready for the language model, and the media items that it points at."""

    body: dict[str, Any]
    items: tuple[MediaItem, ...]


def place(message: int, part: int) -> str:
    """How errors name a content part."""
    return f"messages[{message}].content[{part}]"


def parse_chat(body: Mapping[str, Any], max_items: int) -> ParsedChat:
    """Split a chat request. Raises `ApiError` 400 naming message and part."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_request("'messages' must be a list of at least one message", param="messages")
    items: list[MediaItem] = []
    parsed = [_message(message, index, items) for index, message in enumerate(messages)]
    if len(items) > max_items:
        raise bad_request(
            f"the request holds {len(items)} media items; at most {max_items} are accepted "
            f"(the first one too many is {items[max_items].where})",
            code="too_many_media",
            param=items[max_items].where,
        )
    return ParsedChat({**body, "messages": parsed}, tuple(items))


def _message(message: Any, index: int, items: list[MediaItem]) -> Any:
    if not isinstance(message, dict):
        raise bad_request(f"messages[{index}] must be an object", param=f"messages[{index}]")
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = []
    for number, part in enumerate(content):
        item = _part(part, index, number)
        if item is None:
            parts.append(part)
        else:
            parts.append({"type": "media", "index": len(items)})
            items.append(item)
    return {**message, "content": parts}


def _part(part: Any, message: int, number: int) -> MediaItem | None:
    """The media item of a part; None for a part without media."""
    where = place(message, number)
    if not isinstance(part, dict):
        raise bad_request(f"{where} must be an object with a 'type'", param=where)
    kind = part.get("type")
    if isinstance(kind, str) and kind in TEXT_PARTS:
        return None
    if not isinstance(kind, str) or kind not in _MEDIA_PARTS:
        known = ", ".join(["text", *_MEDIA_PARTS])
        raise bad_request(
            f"{where} has the unknown type {quoted(kind)}; known types are {known}",
            code="unknown_part_type",
            param=where,
        )
    value = part.get(kind)
    if kind == "video":
        return _video(part, value, message, number)
    if not isinstance(value, dict):
        raise bad_request(f"{where}.{kind} must be an object", param=where)
    if kind == "input_audio":
        return _input_audio(part, value, message, number)
    source = _text(value, "url", kind, where)
    modality = _MEDIA_PARTS[kind]
    if modality == "image":
        _only(value, {"url", "detail"}, f"{where}.{kind}")
        _only(part, {kind}, where)
        options = _image_options(value, where)
    elif modality == "video":
        _only(value, {"url", *_VIDEO_KEYS}, f"{where}.{kind}")
        _only(part, {kind, *_VIDEO_KEYS}, where)
        options = _video_options(part, value, where)
        pictures = inline_pictures(source)
        if pictures:
            return MediaItem("video", message, number, "", "uri", options, pictures)
    else:
        _only(value, {"url"}, f"{where}.{kind}")
        _only(part, {kind}, where)
        options = {}
    return MediaItem(modality, message, number, source, "uri", options)


def _video(part: Mapping[str, Any], value: Any, message: int, number: int) -> MediaItem:
    """A clip as a list of pictures, or as one URL."""
    where = place(message, number)
    _only(part, {"video", *_VIDEO_KEYS}, where)
    options = _video_options(part, {}, where)
    if isinstance(value, str) and value:
        pictures = inline_pictures(value)
        return MediaItem(
            "video", message, number, "" if pictures else value, "uri", options, pictures
        )
    if not isinstance(value, list) or not value:
        raise bad_request(f"{where}.video must be a URL or a list of pictures' URLs", param=where)
    for index, picture in enumerate(value):
        if not isinstance(picture, str) or not picture:
            raise bad_request(f"{where}.video[{index}] must be a URL", param=where)
    return MediaItem("video", message, number, "", "uri", options, tuple(value))


def inline_pictures(uri: str) -> tuple[str, ...]:
    """The pictures of a data URI of type video/jpeg: base64 data with commas between them."""
    if uri[: len(_JPEG_SEQUENCE)].lower() != _JPEG_SEQUENCE:
        return ()
    data = uri[len(_JPEG_SEQUENCE) :]
    return tuple(f"data:image/jpeg;base64,{picture}" for picture in data.split(","))


def _input_audio(
    part: Mapping[str, Any], value: Mapping[str, Any], message: int, number: int
) -> MediaItem:
    where = place(message, number)
    _only(value, {"data", "format"}, f"{where}.input_audio")
    _only(part, {"input_audio"}, where)
    data = _text(value, "data", "input_audio", where)
    # The format is a hint only: the decoder reads the container from the bytes.
    if not isinstance(value.get("format", ""), str):
        raise bad_request(f"{where}.input_audio.format must be text", param=where)
    encoding: Literal["uri", "base64"] = "uri" if data[:5].lower() == "data:" else "base64"
    return MediaItem("audio", message, number, data, encoding)


def _image_options(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    detail = value.get("detail")
    if detail is None or detail == "auto":
        return {}
    if detail not in _DETAILS:
        raise bad_request(
            f"{where}.image_url.detail must be one of auto, low and high", param=where
        )
    return {"detail": detail}


def _video_options(part: Mapping[str, Any], value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Sampling wishes: inside `video_url` or beside it, both are in use."""
    options: dict[str, Any] = {}
    for name in sorted(_VIDEO_KEYS):
        given = [holder[name] for holder in (part, value) if holder.get(name) is not None]
        if not given:
            continue
        if len(given) == 2 and given[0] != given[1]:
            raise bad_request(f"{where} gives two different values of {name}", param=where)
        options[name] = _wish(given[0], name, where)
    return options


def _wish(value: Any, name: str, where: str) -> Any:
    if name == "key_frames":
        if not isinstance(value, bool):
            raise bad_request(f"{where}.key_frames must be true or false", param=where)
        return value
    if name == "times":
        if not isinstance(value, list) or not value or not all(_is_number(n) for n in value):
            raise bad_request(f"{where}.times must be a list of seconds", param=where)
        return [float(n) for n in value]
    return _positive(value, name, where)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9


def _positive(value: Any, name: str, where: str) -> float | int:
    number = _is_number(value) and value > 0
    if name == "fps":
        if not number:
            raise bad_request(f"{where}.{name} must be a number above 0", param=where)
        return float(value)
    if not number or int(value) != value:
        raise bad_request(f"{where}.{name} must be a whole number of at least 1", param=where)
    return int(value)


def _text(value: Mapping[str, Any], name: str, kind: str, where: str) -> str:
    text = value.get(name)
    if not isinstance(text, str) or not text:
        raise bad_request(f"{where}.{kind}.{name} must be a text that is not empty", param=where)
    return text


def _only(value: Mapping[str, Any], known: set[str], where: str) -> None:
    """Refuse an option that would silently change nothing."""
    unknown = sorted(set(value) - known - _IGNORED_KEYS)
    if unknown:
        names = ", ".join(sorted(known))
        raise bad_request(
            f"{where} holds the unknown key {quoted(unknown[0])}; known keys are {names}",
            code="unknown_key",
            param=where,
        )
