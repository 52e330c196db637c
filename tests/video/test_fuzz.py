"""Spoiled files: an answer or a refusal, never anything else."""

from __future__ import annotations

import asyncio

import numpy as np

from tests.video.clips import CLOSED, Clip, Track, numbers, pictures, sound_file
from video.clip import Clip as Decoded
from video.clip import Sound
from video.deployment import VideoDecoder
from video.errors import MediaError

SEEDS = [
    Clip(options=CLOSED, track=Track(1.0)).encode(),
    Clip(options=CLOSED, container="matroska", track=Track(1.0, codec="libopus")).encode(),
    Clip(options=CLOSED, container="mpegts").encode(),
    Clip(options=CLOSED, container="avi").encode(),
    Clip(options=CLOSED, container="h264").encode(),
    Clip(codec="mpeg4", options={"bf": "2"}).encode(),
    Clip(codec="libvpx-vp9", container="webm", options={"deadline": "realtime"}).encode(),
    pictures(6, "GIF", 100, (64, 48)),
    pictures(6, "WEBP", 100, (64, 48)),
    sound_file(Track(0.5, codec="libmp3lame"), "mp3"),
    sound_file(Track(0.5, codec="flac"), "flac"),
    sound_file(Track(0.5, codec="pcm_s16le")),
]


def spoil(data: bytes, random: np.random.Generator) -> bytes:
    spoiled = bytearray(data)
    first, last = sorted(random.integers(0, len(data), 2).tolist())
    match random.integers(4):
        case 0:  # single bytes anywhere
            for at in random.integers(0, len(data), random.integers(1, 20)):
                spoiled[at] = random.integers(256)
        case 1:  # single bytes in the head
            for at in random.integers(0, min(len(data), 600), random.integers(1, 10)):
                spoiled[at] = random.integers(256)
        case 2:  # the rest is missing
            del spoiled[last:]
        case 3:  # a part is missing
            del spoiled[first:last]
    return bytes(spoiled)


async def test_spoiled_files():  # cases 39 and 44
    random = np.random.default_rng(7)
    decoder = VideoDecoder({"workers": 2, "max_waiting": 1000, "memory_bytes": 1 << 27})
    try:
        await decoder.ready()
        files = [spoil(data, random) for data in SEEDS for _ in range(25)]
        found = await asyncio.gather(
            *(decoder.decode_clip(data, {"fps": 5.0}) for data in files),
            *(decoder.decode_sound(data) for data in files),
            return_exceptions=True,
        )
        odd = [thing for thing in found if not isinstance(thing, (Decoded, Sound, MediaError))]
        assert odd == []
        clips = [thing for thing in found if isinstance(thing, Decoded)]
        assert len(clips) > 50
        assert all(len(c.frames) == len(c.times) and len(c.times) % 2 == 0 for c in clips)
        assert all((np.diff(c.times) >= 0).all() for c in clips)
        assert numbers((await decoder.decode_clip(SEEDS[0])).frames)[-1] == 59
    finally:
        decoder.close()
