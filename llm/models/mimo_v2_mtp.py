"""The MTP draft model, as SGLang has it."""

from __future__ import annotations

from sglang.srt.models.mimo_v2_nextn import EntryClass

__all__ = ["EntryClass"]
