"""Everything beside its bytes that changes a media item's rows.

The checkpoint's rule comes first, the settings may narrow it, a request may wish for something
else within limits. The result goes to the stages and into the item's digest: one file read in two
ways is two items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.chat import MediaItem
from app.errors import bad_request
from app.settings import Settings


@dataclass(frozen=True)
class ItemOptions:
    """Options of the decoder and of the encoder for one item."""

    decode: dict[str, Any] = field(default_factory=dict)
    encode: dict[str, Any] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """For the digest."""
        return {"decode": self.decode, "encode": self.encode}


@dataclass(frozen=True)
class OptionRules:
    """Defaults and limits; `sampling` holds fps, min_frames and max_frames, all optional but the
    last. What both settings and checkpoint leave open is left to the stages."""

    sampling: Mapping[str, Any]
    frame_pixels: Mapping[str, int]
    image_pixels: Mapping[str, int]
    request_max_fps: float
    request_max_frames: int

    @classmethod
    def of(cls, settings: Settings, model: Mapping[str, Any]) -> OptionRules:
        """`model` is the checkpoint's config.json, whose `processor_config` holds its defaults."""
        video, images = settings.video, settings.images
        processor = model.get("processor_config") or {}
        sampling: dict[str, Any] = {}
        for name in ("fps", "min_frames", "max_frames"):
            value = getattr(video, name)
            value = processor.get(name) if value is None else value
            if value is not None:
                sampling[name] = float(value) if name == "fps" else int(value)
        most = video.request_max_frames
        sampling["max_frames"] = min(sampling.get("max_frames", most), most)
        names = ("min_pixels", "max_pixels", "total_max_pixels")
        return cls(
            sampling,
            _given({name: getattr(video, name) for name in names}),
            _given(
                {"min_pixels": images.resize_min_pixels, "max_pixels": images.resize_max_pixels}
            ),
            video.request_max_fps,
            most,
        )

    def options(self, item: MediaItem) -> ItemOptions:
        """The options of one item. Raises `ApiError` 400 for a wish out of range."""
        if item.modality == "image":
            low = item.options.get("detail") == "low"  # "high" is what everyone gets
            return ItemOptions(encode={**self.image_pixels, **({"detail": "low"} if low else {})})
        if item.modality == "video":
            return ItemOptions(self._sampling(item), dict(self.frame_pixels))
        return ItemOptions()

    def _sampling(self, item: MediaItem) -> dict[str, Any]:
        wishes = item.options
        for name, value in wishes.items():
            if name in ("times", "key_frames"):
                continue
            most = self.request_max_fps if name == "fps" else self.request_max_frames
            if value > most:
                raise _refused(item, f"{name} is {value:g}; it must be at most {most:g}")
        if len(item.pictures) > self.request_max_frames:
            most = self.request_max_frames
            raise _refused(item, f"{len(item.pictures)} pictures; at most {most} are accepted")
        rules = [name for name in ("fps", "num_frames", "times") if name in wishes]
        if len(rules) > 1:
            raise _refused(item, f"{' and '.join(rules)} are given; they exclude each other")
        if len(wishes.get("times", ())) > self.request_max_frames:
            raise _refused(item, f"times has more than {self.request_max_frames} entries")
        if item.pictures and ("times" in wishes or "key_frames" in wishes):
            raise _refused(item, "pictures sent as a clip take neither times nor key_frames")
        sampling = {**self.sampling, **wishes}
        if "num_frames" in wishes or "times" in wishes:
            sampling.pop("fps", None)
        return sampling


def _given(values: Mapping[str, int | None]) -> dict[str, int]:
    return {name: value for name, value in values.items() if value is not None}


def _refused(item: MediaItem, reason: str) -> Exception:
    return bad_request(f"{item.where}: {reason}", code="invalid_media", param=item.where)
