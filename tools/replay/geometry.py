"""What a model's key-value cache and weights weigh, and the pools a node has room for."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Geometry:
    """Sizes of one model. ``full_heads`` and ``window_heads`` are key-value heads summed over the
    layers that attend to all tokens, and over those with a sliding window; dims are per head.
    """

    name: str
    full_layers: int
    window_layers: int
    full_heads: int
    window_heads: int
    key_dim: int
    value_dim: int
    query_heads: int
    hidden: int
    window: int
    weight_bytes: float
    expert_share: float
    active_parameters: float
    experts: int
    experts_per_token: int
    kv_element_bytes: int = 2

    @property
    def full_bytes(self) -> int:
        """KV bytes of one token in all full-attention layers."""
        per_head = (self.key_dim + self.value_dim) * self.kv_element_bytes
        return self.full_heads * per_head

    @property
    def window_bytes(self) -> int:
        """KV bytes of one token inside the window, in all sliding-window layers."""
        per_head = (self.key_dim + self.value_dim) * self.kv_element_bytes
        return self.window_heads * per_head

    def sequence_bytes(self, tokens: int) -> int:
        """KV bytes of one sequence of this length."""
        return self.full_bytes * tokens + self.window_bytes * min(tokens, self.window)

    @property
    def attention_parameters(self) -> float:
        """Projection weights of all layers: what each attention rank computes for itself."""
        layers = self.full_layers + self.window_layers
        queries = self.query_heads * (self.key_dim + self.value_dim) * self.hidden
        per_head = (self.key_dim + self.value_dim) * self.hidden
        return layers * queries + (self.full_heads + self.window_heads) * per_head

    @property
    def local_share(self) -> float:
        """Share of a token's linear work that its own attention rank does."""
        return self.attention_parameters / self.active_parameters

    def without_window(self) -> Geometry:
        """The same layers, but each keeps and attends all tokens."""
        return replace(
            self,
            name=f"{self.name}, no window",
            full_layers=self.full_layers + self.window_layers,
            full_heads=self.full_heads + self.window_heads,
            window_layers=0,
            window_heads=0,
            window=0,
        )


# Dimensions of the published checkpoints. Weights are fp8: about a byte per parameter.
V25 = Geometry(
    name="MiMo-V2.5",
    full_layers=9,
    window_layers=39,
    full_heads=9 * 4,
    window_heads=39 * 8,
    key_dim=192,
    value_dim=128,
    query_heads=64,
    hidden=4096,
    window=129,
    weight_bytes=310.8e9,
    expert_share=47 * 256 * 3 * 4096 * 2048 / 310.8e9,
    active_parameters=15e9,
    experts=256,
    experts_per_token=8,
)
PRO = Geometry(
    name="MiMo-V2.5-Pro",
    full_layers=10,
    window_layers=60,
    full_heads=10 * 8,
    window_heads=60 * 8,
    key_dim=192,
    value_dim=128,
    query_heads=128,
    hidden=6144,
    window=129,
    weight_bytes=1023.2e9,
    expert_share=69 * 384 * 3 * 6144 * 2048 / 1023.2e9,
    active_parameters=42e9,
    experts=384,
    experts_per_token=8,
)
MODELS = {"v2.5": V25, "pro": PRO}


@dataclass(frozen=True)
class Pools:
    """Room for KV on one replica. ``windows``: how many prefixes may keep the window that ends
    them, beside what running requests use. ``host`` and ``store``: bytes of the lower tiers."""

    full_tokens: int
    windows: int
    host_bytes: float = 0.0
    store_bytes: float = 0.0


def pools(
    geometry: Geometry,
    gpus: int,
    gpu_bytes: float,
    memory_share: float,
    window_ratio: float,
    running_reserve: int,
    host_bytes: float = 0.0,
) -> Pools:
    """Pool sizes by the engine's rule: a token of the full pool weighs F + ratio * S.

    ``window_ratio``: SWA pool tokens per full pool token. ``running_reserve``: SWA tokens kept
    for running requests and the chunk in flight. Without window layers every token keeps all its
    KV, so no separate windows exist. Raises ValueError when the weights leave no room.
    """
    room = gpus * gpu_bytes * memory_share - geometry.weight_bytes
    per_token = geometry.full_bytes + window_ratio * geometry.window_bytes
    tokens = int(room / per_token)
    if tokens <= 0:
        raise ValueError(
            f"{geometry.name} weighs {geometry.weight_bytes / 1e9:.0f} GB; {gpus} GPUs leave "
            f"{room / 1e9:.0f} GB for KV"
        )
    if not geometry.window_layers:
        return Pools(tokens, 0, host_bytes)
    spare = int(tokens * window_ratio) - running_reserve
    if spare < geometry.window:
        raise ValueError(
            f"the SWA pool of {int(tokens * window_ratio)} tokens does not hold the "
            f"{running_reserve} that running requests need; raise window_ratio"
        )
    return Pools(tokens, spare // geometry.window, host_bytes)
