"""What a checkpoint's config.json says about the vision tower and its pre-processing. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Attention of a block: over the whole segment, or windowed in row or in column order.
FULL, ROW, COLUMN = -1, 0, 1


@dataclass(frozen=True)
class VisionConfig:
    """Shape of the vision tower (`vision_config`, mimo-v2.md 1.2 and 4.3)."""

    depth: int
    hidden_size: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    in_channels: int
    out_hidden_size: int
    window_attn_types: tuple[int, ...]
    window: int
    use_sink: bool
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if len(self.window_attn_types) != self.depth:
            raise ValueError(
                f"vision_config.vit_window_attn_types names {len(self.window_attn_types)} blocks, "
                f"depth is {self.depth}"
            )
        if not set(self.window_attn_types) <= {FULL, ROW, COLUMN}:
            raise ValueError("vision_config.vit_window_attn_types may hold -1, 0 and 1 only")
        if self.num_heads % self.num_key_value_heads:
            raise ValueError(
                f"vision_config.num_heads {self.num_heads} is no multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 4:
            raise ValueError(f"vision_config.qk_channels {self.head_dim} is no multiple of 4")
        if self.window < 1 and set(self.window_attn_types) != {FULL}:
            raise ValueError(
                f"vision_config.visual_token_window_size must be at least 1, is {self.window}"
            )

    @property
    def factor(self) -> int:
        """Pixels that one merged token covers along one side."""
        return self.patch_size * self.spatial_merge_size

    @property
    def merge_unit(self) -> int:
        """Patches per merged token."""
        return self.spatial_merge_size**2

    def has_sink(self, block: int) -> bool:
        return self.use_sink and self.window_attn_types[block] != FULL

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> VisionConfig:
        """Read `vision_config`; raises `ValueError` naming a missing or contradictory key."""
        wanted = ("depth", "hidden_size", "num_heads", "intermediate_size", "out_hidden_size")
        missing = [key for key in wanted if config.get(key) is None]
        if missing:
            raise ValueError(f"vision_config lacks {', '.join(missing)}")
        depth = int(config["depth"])
        full = set(config.get("fullatt_block_indexes") or ())
        types = config.get("vit_window_attn_types") or [FULL] * depth
        # SGLang takes the window from the type list and full attention from the index list.
        if full and full != {index for index, kind in enumerate(types) if kind == FULL}:
            raise ValueError(
                "vision_config.fullatt_block_indexes and vit_window_attn_types disagree about "
                "which blocks see everything"
            )
        if config.get("hidden_act", "silu") != "silu":
            raise ValueError(f"vision_config.hidden_act {config['hidden_act']!r} is not supported")
        heads = int(config["num_heads"])
        return cls(
            depth=depth,
            hidden_size=int(config["hidden_size"]),
            num_heads=heads,
            num_key_value_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("qk_channels") or 64),
            intermediate_size=int(config["intermediate_size"]),
            patch_size=int(config.get("patch_size") or 16),
            temporal_patch_size=int(config.get("temporal_patch_size") or 2),
            spatial_merge_size=int(config.get("spatial_merge_size") or 2),
            in_channels=int(config.get("in_chans") or config.get("in_channels") or 3),
            out_hidden_size=int(config["out_hidden_size"]),
            window_attn_types=tuple(int(kind) for kind in types),
            window=int(config.get("visual_token_window_size") or -1),
            use_sink=bool(config.get("use_sink", False)),
            eps=float(config.get("rms_norm_eps") or 1e-6),
        )


@dataclass(frozen=True)
class PixelBudget:
    """How many pixels an image or a frame may have after the resize (`processor_config`).

    Null or absent values fall back to SGLang's: 4 to 4096 merged tokens per image or frame and
    16384 per clip. `video_total_max` counts every sampled frame of a clip once per temporal patch.
    """

    image_min: int
    image_max: int
    video_min: int
    video_max: int
    video_total_max: int

    def __post_init__(self) -> None:
        for kind in ("image", "video"):
            low, high = getattr(self, f"{kind}_min"), getattr(self, f"{kind}_max")
            if not 0 < low <= high:
                raise ValueError(
                    f"processor_config: {kind}_min_pixels {low} must be in 1..{kind}_max_pixels "
                    f"({high})"
                )

    @classmethod
    def from_dict(cls, processor: Mapping[str, Any], factor: int) -> PixelBudget:
        unit = factor * factor

        def value(key: str, tokens: int) -> int:
            return int(processor.get(key) or tokens * unit)

        return cls(
            image_min=value("image_min_pixels", 4),
            image_max=value("image_max_pixels", 4096),
            video_min=value("video_min_pixels", 4),
            video_max=value("video_max_pixels", 4096),
            video_total_max=value("video_total_max_pixels", 16384),
        )

    def frame_max(self, frames: int, temporal_patch: int) -> int:
        """Most pixels of one frame in a clip of `frames` sampled frames (mimo-v2.md section 5)."""
        share = self.video_total_max * temporal_patch // max(frames, 1)
        return max(self.video_min, min(share, self.video_max))
