"""The audio tokenizer with its training-only parts: decoder to mel frames, word head."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from encoders.audio.config import EncoderConfig, TokenizerConfig, sound_lengths
from encoders.audio.packing import PackedConv, window_index
from encoders.audio.tokenizer import AudioTokenizer
from tools.pocket import configs
from tools.pocket.data.words import SPOKEN, TONES
from tools.pocket.spec import PocketSpec
from tools.pocket.train.vq import QuantizerTrainer

VOCABULARY = (*SPOKEN, *TONES)  # CTC class 0 is the blank
FRAMES_PER_CODE = 4
# Mean and deviation of log-mel values over generated sounds, folded into the first convolution.
MEL_MEAN, MEL_STD = -5.0, 3.5


def build_tokenizer(spec: PocketSpec) -> AudioTokenizer:
    """The tokenizer of the checkpoint's own configuration, in the attention form it is served in
    (causal, local in every other layer), with fresh weights."""
    raw = configs.model_config(spec)["audio_config"]
    config = TokenizerConfig.from_dict(configs.audio_tokenizer_config(spec))
    encoder = EncoderConfig.from_dict(raw)
    tokenizer = AudioTokenizer(config, sound_lengths(config, encoder), stages=encoder.channels)
    depth = (2 * config.layers) ** -0.5
    with torch.no_grad():
        for name, parameter in tokenizer.named_parameters():
            if name.endswith(("out_proj.weight", "fc2.weight")):
                parameter.mul_(depth)
        weight, bias = tokenizer.conv1.weight, tokenizer.conv1.bias
        assert bias is not None
        weight.div_(MEL_STD)
        bias.sub_(MEL_MEAN * weight.sum(dim=(1, 2)))
    return tokenizer


class ConvHead(nn.Module):
    """Two convolutions over the codes of each segment: [n, width] to [n, out]."""

    def __init__(self, width: int, out: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.near = PackedConv(width, width, kernel)
        self.far = PackedConv(width, width, kernel)
        self.out = nn.Linear(width, out)

    def forward(self, x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        before = self.kernel // 2
        index = window_index(
            lengths, lengths, kernel=self.kernel, stride=1, before=before, device=x.device
        )
        x = F.gelu(self.near(x, index))
        return self.out(F.gelu(self.far(x, index)))


class AudioTrainer(nn.Module):
    """Mel reconstruction and CTC on the quantised latents; one loss for all."""

    def __init__(self, spec: PocketSpec) -> None:
        super().__init__()
        width, mels = spec.audio_tokenizer.d_model, spec.audio_tokenizer.n_mels
        self.tokenizer = build_tokenizer(spec)
        self.codes = QuantizerTrainer(self.tokenizer.quantizer)
        self.decoder = ConvHead(width, FRAMES_PER_CODE * mels, 5)
        self.words = ConvHead(width, len(VOCABULARY) + 1, 7)

    def latents(self, mels: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[int]]:
        """Latents of mel segments [frames, bands], packed, and each segment's number of codes."""
        sizes = [mel.shape[0] for mel in mels]
        counts = [self.tokenizer.lengths.codes(size) for size in sizes]
        return self.tokenizer.latents(torch.cat(list(mels)), sizes), counts

    def losses(
        self, mels: Sequence[torch.Tensor], targets: Sequence[Sequence[int]]
    ) -> dict[str, torch.Tensor]:
        """Mean losses "mel" (L1 in log units), "ctc" (per word) and "commitment"."""
        latents, counts = self.latents(mels)
        quantised, commitment = self.codes(latents)
        decoded = self.decoder(quantised, counts).float()
        wanted = torch.cat([_by_code(mel, n) for mel, n in zip(mels, counts, strict=True)])
        scores = F.log_softmax(self.words(quantised, counts).float(), dim=-1)
        padded = nn.utils.rnn.pad_sequence(list(scores.split(counts)))
        ctc = F.ctc_loss(
            padded,
            torch.tensor([word for target in targets for word in target]),
            torch.tensor(counts),
            torch.tensor([len(target) for target in targets]),
            zero_infinity=True,
        )
        mel = F.l1_loss(decoded * MEL_STD + MEL_MEAN, wanted)
        return {"mel": mel, "ctc": ctc, "commitment": commitment}

    @torch.no_grad()
    def transcribe(self, mels: Sequence[torch.Tensor]) -> list[list[str]]:
        """Greedy CTC words of each mel, from its codes."""
        latents, counts = self.latents(mels)
        best = self.words(self.codes(latents)[0], counts).argmax(dim=-1)
        found = []
        for path in best.split(counts):
            merged = [int(path[0]), *(int(b) for a, b in pairwise(path) if a != b)]
            found.append([VOCABULARY[k - 1] for k in merged if k])
        return found


def _by_code(mel: torch.Tensor, count: int) -> torch.Tensor:
    """Mel frames [count, 4 * bands] under each code; the last one is completed by repetition."""
    missing = count * FRAMES_PER_CODE - mel.shape[0]
    if missing > 0:
        mel = torch.cat([mel, mel[-1:].expand(missing, -1)])
    return mel[: count * FRAMES_PER_CODE].reshape(count, -1)
