"""How clips are sampled: the checkpoint's rule, the settings' changes, the request's wishes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.errors import bad_request
from app.settings.stages import VideoSettings


@dataclass(frozen=True)
class VideoSampling:
    """Sampling options of a clip (fps, num_frames, min_frames, max_frames) and their bounds.

    The merged options go to the video decoder, which applies the family's rule, and into the
    clip's digest: the same file sampled in two ways is two items.
    """

    defaults: Mapping[str, Any]
    max_fps: float
    max_frames: int

    @classmethod
    def from_settings(cls, settings: VideoSettings, model: Mapping[str, Any]) -> VideoSampling:
        """Settings first, then the checkpoint's `processor_config`; what both leave open is left
        to the decoder. `model` is the checkpoint's config.json."""
        processor = model.get("processor_config") or {}
        defaults: dict[str, Any] = {}
        for name in ("fps", "min_frames", "max_frames"):
            value = getattr(settings, name)
            value = processor.get(name) if value is None else value
            if value is not None:
                defaults[name] = float(value) if name == "fps" else int(value)
        most = settings.request_max_frames
        defaults["max_frames"] = min(defaults.get("max_frames", most), most)
        return cls(defaults, settings.request_max_fps, most)

    def for_request(self, wishes: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The sampling of one clip. Raises `ApiError` 400 for a wish out of range."""
        for name, value in wishes.items():
            most = self.max_fps if name == "fps" else self.max_frames
            if value > most:
                raise _refused(where, f"{name} is {value:g}; it must be at most {most:g}")
        if {"fps", "num_frames"} <= wishes.keys():
            raise _refused(where, "fps and num_frames are given; they exclude each other")
        options = {**self.defaults, **wishes}
        if "num_frames" in wishes:
            options.pop("fps", None)
        return options


def _refused(where: str, reason: str) -> Exception:
    return bad_request(f"{where}: {reason}", code="invalid_media", param=where)
