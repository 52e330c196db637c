"""Parts of one clip over two replicas of a real Serve deployment: the same frames as at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from tests.video.clips import CLOSED, Clip, numbers
from video.clip import Clip as Decoded
from video.deployment import VideoDecoder
from video.long_clip import LongClip, Part

pytestmark = pytest.mark.engine

SAMPLING = {"fps": 1000}


class Named(VideoDecoder):
    """Says which replica answered."""

    async def part(self, data: Any, size: tuple[int, int], part: Part) -> tuple[int, Decoded]:
        return os.getpid(), await self.decode_part(data, "token", SAMPLING, size, part)


@pytest.fixture
def handle() -> Iterator[DeploymentHandle]:
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=100 << 20,
        include_dashboard=False,
        log_to_driver=False,
    )
    try:
        serve.start(proxy_location="Disabled")
        deployment = serve.deployment(
            Named, num_replicas=2, max_ongoing_requests=2, ray_actor_options={"num_cpus": 0.5}
        )
        options = {"workers": 1, "part_frames": 40}
        yield serve.run(deployment.bind(options), name="video-parts", route_prefix=None)
    finally:
        serve.shutdown()
        ray.shutdown()


async def test_parts_over_two_replicas(handle: DeploymentHandle) -> None:
    data = Clip(400, options=CLOSED).encode()
    held = ray.put(np.frombuffer(data, np.uint8))  # once, for all calls
    by_reference = handle.options(_by_reference=True)
    plan = await by_reference.begin_clip.remote(held, "token", SAMPLING)
    assert isinstance(plan, LongClip)
    assert len(plan.parts) >= 8
    answers = await asyncio.gather(
        *(by_reference.part.remote(held, plan.size, part) for part in plan.parts)
    )
    assert len({replica for replica, _ in answers}) == 2
    alone = VideoDecoder({"workers": 1})
    try:
        whole = await alone.decode_clip(data, SAMPLING)
    finally:
        alone.close()
    assert numbers(whole.frames) == list(range(400))
    assert np.array_equal(np.concatenate([clip.frames for _, clip in answers]), whole.frames)
    assert np.array_equal(np.concatenate([clip.times for _, clip in answers]), whole.times)
