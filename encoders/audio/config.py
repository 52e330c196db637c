"""What the audio path reads from `audio_tokenizer/config.json` and `config.json: audio_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from encoders.audio.lengths import SoundLengths
from encoders.audio.options import AttentionForm
from encoders.checkpoint import CheckpointError

# Values of keys for which only one form exists in the family; another one is refused at load.
_FIXED = {
    "activation_function": "gelu",
    "ln_type": "LayerNorm",
    "position_embedding_type": "rope",
    "rope_type": "default",
    "scale_embedding": False,
}


@dataclass(frozen=True)
class Span:
    """Keys that a query at position q sees: q - left .. q + right; None is no limit."""

    left: int | None
    right: int | None


@dataclass(frozen=True)
class TokenizerConfig:
    """The audio tokenizer's encoder: mel front end, convolutions, layers, codebooks."""

    d_model: int
    layers: int
    heads: int
    ffn: int
    skip_layer: int | None
    causal: bool
    window: tuple[int, int]
    hybrid: bool
    swa_per_block: int
    kernel: int
    stride: int
    pooler: int
    rope_theta: float
    codebooks: tuple[int, ...]
    n_mels: int
    n_fft: int
    hop: int
    window_size: int
    sampling_rate: int
    f_min: float
    f_max: float

    @property
    def head_dim(self) -> int:
        return self.d_model // self.heads

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> TokenizerConfig:
        for key, value in _FIXED.items():
            if raw.get(key, value) != value:
                raise CheckpointError(
                    f"audio tokenizer config: {key} is {raw[key]!r}, supported is {value!r}"
                )
        count = int(_need(raw, "num_quantizers"))
        rate = int(raw.get("sampling_rate", 24_000))
        window = raw.get("encoder_attn_window_size") or (-1, -1)
        config = cls(
            d_model=int(_need(raw, "d_model")),
            layers=int(_need(raw, "encoder_layers")),
            heads=int(_need(raw, "encoder_attention_heads")),
            ffn=int(_need(raw, "encoder_ffn_dim")),
            skip_layer=raw.get("encoder_skip_layer_id"),
            causal=bool(raw.get("encoder_causal", False)),
            window=(int(window[0]), int(window[1])),
            hybrid=bool(raw.get("hybrid_attention", False)),
            swa_per_block=int(raw.get("swa_per_block", 2)),
            kernel=int(raw.get("kernel_size", 3)),
            stride=int(raw.get("stride_size", 2)),
            pooler=int(raw.get("avg_pooler", 1)),
            rope_theta=float(raw.get("rope_theta", 10_000)),
            codebooks=_codebooks(raw.get("codebook_size", 1024), count),
            n_mels=int(raw.get("n_mels", 128)),
            n_fft=int(raw.get("nfft", 960)),
            hop=int(raw.get("hop_length", 240)),
            window_size=int(raw.get("window_size", 960)),
            sampling_rate=rate,
            f_min=float(raw.get("fmin") or 0.0),
            f_max=float(raw.get("fmax") or rate / 2),
        )
        config._check()
        return config

    def _check(self) -> None:
        if self.d_model % self.heads or self.head_dim % 2:
            raise CheckpointError(
                f"audio tokenizer config: d_model {self.d_model} over {self.heads} heads "
                "is not an even head size"
            )
        if self.skip_layer is not None and not 1 <= self.skip_layer <= self.layers:
            raise CheckpointError(
                f"audio tokenizer config: encoder_skip_layer_id {self.skip_layer} "
                f"is not in 1..{self.layers}"
            )
        if self.window_size > self.n_fft:
            raise CheckpointError(
                f"audio tokenizer config: window_size {self.window_size} exceeds nfft {self.n_fft}"
            )

    def _limits(self) -> tuple[int | None, int | None]:
        left, right = (None if side < 0 else side for side in self.window)
        return left, 0 if self.causal else right

    def span(self, layer: int, form: AttentionForm) -> Span:
        """The attention span of a layer.

        In a hybrid stack every `swa_per_block`-th layer sees everything and the others are
        local (2: even layers local); otherwise all layers are. A window [128, 0] is flash
        attention's: the query itself and 128 frames before it.
        """
        if form == "bidirectional":
            return Span(None, None)
        left, right = self._limits()
        full = self.hybrid and layer % self.swa_per_block == self.swa_per_block - 1
        return Span(None, 0 if self.causal else None) if full else Span(left, right)


@dataclass(frozen=True)
class EncoderConfig:
    """The path from codes to language-model rows (`audio_config` of the main configuration)."""

    channels: int
    group: int
    dim: int
    layers: int
    heads: int
    head_dim: int
    intermediate: int
    full_attention: bool
    post_norm: bool
    rope_theta: float
    rotary_dim: int
    projection_layers: int
    out_hidden: int
    vocabularies: tuple[int, ...]
    zero_ids: tuple[int, ...]
    segment: int

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> EncoderConfig:
        channels = int(_need(raw, "audio_channels"))
        dim = int(_need(raw, "input_local_dim"))
        heads = int(_need(raw, "input_local_attn_heads"))
        head_dim = int(raw.get("input_local_head_dim") or dim // heads)
        config = cls(
            channels=channels,
            group=int(raw.get("group_size", 4)),
            dim=dim,
            layers=int(_need(raw, "input_local_layers")),
            heads=heads,
            head_dim=head_dim,
            intermediate=int(_need(raw, "input_local_intermediate_size")),
            full_attention=bool(raw.get("input_full_attention", True)),
            post_norm=bool(raw.get("add_post_norm", False)),
            rope_theta=float(raw.get("rope_theta", 640_000)),
            rotary_dim=int(head_dim * float(raw.get("partial_rotary_factor", 1.0))),
            projection_layers=int(raw.get("projection_layers", 1)),
            out_hidden=int(_need(raw, "out_hidden_size")),
            vocabularies=_per_channel(raw, "speech_vocab_size", channels),
            zero_ids=_per_channel(raw, "speech_zeroemb_idx", channels),
            segment=int(raw.get("audio_segment_size", 6_000)),
        )
        if config.projection_layers not in (1, 2):
            raise CheckpointError(
                f"audio_config: projection_layers is {config.projection_layers}, not 1 or 2"
            )
        if config.rotary_dim % 2:
            raise CheckpointError(f"audio_config: rotary size {config.rotary_dim} is odd")
        return config

    def check_codebooks(self, codebooks: tuple[int, ...]) -> None:
        """Every code that the tokenizer can emit needs a row in its speech embedding."""
        if len(codebooks) < self.channels:
            raise CheckpointError(
                f"audio_config: audio_channels is {self.channels}, "
                f"the tokenizer has {len(codebooks)} quantizers"
            )
        for channel, (codes, rows) in enumerate(zip(codebooks, self.vocabularies, strict=False)):
            if codes > rows:
                raise CheckpointError(
                    f"audio_config: speech_vocab_size of channel {channel} is {rows}, "
                    f"its codebook has {codes} codes"
                )


def sound_lengths(tokenizer: TokenizerConfig, encoder: EncoderConfig) -> SoundLengths:
    return SoundLengths(
        sampling_rate=tokenizer.sampling_rate,
        n_fft=tokenizer.n_fft,
        hop=tokenizer.hop,
        kernel=tokenizer.kernel,
        stride=tokenizer.stride,
        pooler=tokenizer.pooler,
        group=encoder.group,
        segment=encoder.segment,
    )


def _need(raw: Mapping[str, Any], key: str) -> Any:
    if raw.get(key) is None:
        raise CheckpointError(f"audio config: key {key} is missing")
    return raw[key]


def _codebooks(sizes: int | list[int], count: int) -> tuple[int, ...]:
    """One size for all, or a list whose last entry stands for the quantizers it leaves out."""
    listed = [sizes] if isinstance(sizes, int) else list(sizes)
    return tuple((listed + listed[-1:] * count)[:count])


def _per_channel(raw: Mapping[str, Any], key: str, channels: int) -> tuple[int, ...]:
    """An integer per channel from "1280" (all the same) or "1025-1025-129-..."."""
    parts = str(_need(raw, key)).split("-")
    values = parts * channels if len(parts) == 1 else parts
    if len(values) != channels or not all(value.isdigit() for value in values):
        raise CheckpointError(f"audio_config: {key} {raw[key]!r} is not one or {channels} integers")
    return tuple(int(value) for value in values)
