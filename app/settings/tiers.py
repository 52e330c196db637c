"""Settings of the KV tiers below device memory: host memory (L2) and the store (L3)."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from app.settings.base import GIB, MIB, Section


class HostTierSettings(Section):
    """L2: a copy in host memory of what the prefix tree holds."""

    ratio: float = Field(
        default=2.0, gt=0, le=1000, description="Tokens in each host pool per token of its KV pool"
    )
    gigabytes: int | None = Field(
        default=None, ge=1, le=65_536, description="Size of the host pools instead; null = by ratio"
    )
    write_policy: Literal["write_through", "write_through_selective", "write_back"] = Field(
        default="write_through",
        description="When KV is copied: at once, when used again, or when it is evicted",
    )


class StoreSettings(Section):
    """L3: a store that engines share and that survives them."""

    backend: Literal["node", "mooncake"] = Field(
        default="node", description="Our store of one node, or Mooncake's over several"
    )
    memory_path: str | None = Field(
        default=None,
        description="Directory of the memory tier, such as /dev/shm/omniserve; or null",
    )
    memory_bytes: int = Field(
        default=GIB, ge=MIB, le=2**50, description="Bytes of the memory tier on a node"
    )
    disk_path: str | None = Field(
        default=None, description="Directory of the disk tier, an absolute path; or null"
    )
    disk_bytes: int = Field(
        default=16 * GIB, ge=MIB, le=2**60, description="Bytes of the disk tier on a node"
    )
    timeout_s: float = Field(
        default=0.5, gt=0, le=60, description="Seconds after which what was not read is a miss"
    )
    min_tokens: int = Field(
        default=256,
        ge=1,
        le=1_000_000,
        description="Prompt tokens from which on the store is asked",
    )
    prefetch: Literal["timeout", "wait_complete", "best_effort"] = Field(
        default="timeout", description="How long a request waits for pages that the store has"
    )
    touch_interval_s: float = Field(
        default=60.0,
        ge=0,
        le=86_400,
        description="Seconds between refreshes of a prefix that is served from above the store",
    )
    mooncake: dict[str, Any] = Field(
        default={}, description="Mooncake's own options, such as master_server_address"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.backend == "mooncake":
            if self.memory_path or self.disk_path:
                raise ValueError("memory_path and disk_path belong to backend node, not mooncake")
            if "master_server_address" not in self.mooncake:
                raise ValueError("mooncake lacks master_server_address; it must name host:port")
            return self
        if self.mooncake:
            raise ValueError("mooncake holds options, but backend is node")
        if not (self.memory_path or self.disk_path):
            raise ValueError("memory_path and disk_path are null; at least one must be a directory")
        for name in ("memory_path", "disk_path"):
            value = getattr(self, name)
            if value and not value.startswith("/"):
                raise ValueError(f"{name} is {value!r}; it must be an absolute path")
        if self.memory_path and self.memory_path == self.disk_path:
            raise ValueError(f"memory_path and disk_path are both {self.memory_path!r}")
        return self


class TierSettings(Section):
    """KV below device memory, and which prefixes of a prompt can be matched."""

    host: HostTierSettings | None = Field(default=None, description="L2 in host memory; or null")
    store: StoreSettings | None = Field(default=None, description="L3, the store; or null")
    swa_tails: list[int] = Field(
        default=[],
        description="Prompt positions before which window KV is kept, so that shorter prompts with "
        "the same start find it; each costs a window of the SWA pool",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.store is not None and self.host is None:
            raise ValueError("store is given without host; pages reach it through host memory")
        if any(tail < 1 for tail in self.swa_tails) or self.swa_tails != sorted(
            set(self.swa_tails)
        ):
            raise ValueError(
                f"swa_tails is {self.swa_tails}; it must be a rising list of positions from 1"
            )
        return self
