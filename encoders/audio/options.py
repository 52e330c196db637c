"""Options of the audio path, checked when the model is loaded. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

AttentionForm = Literal["causal_local", "bidirectional"]


@dataclass(frozen=True)
class AudioOptions:
    """How the audio path runs.

    `attention`: the mask of the audio tokenizer, where public implementations disagree.
      "causal_local" follows the tokenizer's own configuration, as the published model code and
      the MiMo-Audio repository do: causal everywhere, and the hybrid pattern's local layers see
      `encoder_attn_window_size[0]` frames back. It is the default because the codebooks and
      speech embeddings were trained on the codes this mask produces.
      "bidirectional" is what SGLang 0.5.23 computes (it drops causality and window, so each layer
      sees the whole segment in both directions); choose it to reproduce that server, or for a
      checkpoint trained with it.
    `batch_frames`: mel frames that one pass of the tokenizer takes at most (a bound on memory;
      it never changes a result). One segment always fits.
    `max_seconds`: longest sound accepted, in seconds.
    """

    attention: AttentionForm = "causal_local"
    batch_frames: int = 60_000
    max_seconds: float = 7_200.0

    def __post_init__(self) -> None:
        allowed = get_args(AttentionForm)
        if self.attention not in allowed:
            raise ValueError(f"audio option attention: {self.attention!r} is not one of {allowed}")
        if not 1 <= self.batch_frames <= 10_000_000:
            raise ValueError(
                f"audio option batch_frames: {self.batch_frames} is not in 1..10000000"
            )
        if not 0 < self.max_seconds <= 86_400:
            raise ValueError(f"audio option max_seconds: {self.max_seconds} is not in (0, 86400]")

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any] | None) -> AudioOptions:
        """Options by name; raises `ValueError` that names an unknown key and the known ones."""
        known = [field.name for field in fields(cls)]
        given = dict(options or {})
        for key in given:
            if key not in known:
                raise ValueError(f"audio option {key!r} is unknown; known: {', '.join(known)}")
        return cls(**given)
