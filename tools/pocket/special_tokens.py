"""Special tokens of the model family, in the order of their ids (the last of the vocabulary)."""

from __future__ import annotations

# (text, special): special tokens are dropped by skip_special_tokens; the think and tool tags
# must survive it because the reasoning and tool-call parsers read them from the output text.
SPECIAL_TOKENS: tuple[tuple[str, bool], ...] = (
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<|vision_start|>", True),
    ("<|vision_end|>", True),
    ("<|vision_pad|>", True),
    ("<|image_pad|>", True),
    ("<|video_pad|>", True),
    ("<tool_call>", False),
    ("</tool_call>", False),
    ("<tool_response>", False),
    ("</tool_response>", False),
    ("<think>", False),
    ("</think>", False),
    ("<|audio_pad|>", True),
    ("<|mimo_video_start|>", True),
    ("<|mimo_video_end|>", True),
    ("<|mimo_audio_eod|>", True),
    ("<|mimo_audio_start|>", True),
    ("<|mimo_audio_end|>", True),
)

PAD, IM_START, EOS = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


def special_ids(vocab_size: int) -> dict[str, int]:
    """Id of every special token in a vocabulary of ``vocab_size`` entries."""
    first = vocab_size - len(SPECIAL_TOKENS)
    return {text: first + i for i, (text, _) in enumerate(SPECIAL_TOKENS)}
