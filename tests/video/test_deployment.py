"""The replica: what happens when processes die, hang, or callers leave."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import time
from functools import partial

import numpy as np
import psutil
import pytest

from tests.video import faults
from tests.video.clips import CLOSED, Clip, Track, numbers, sound_file
from video.deployment import VideoDecoder
from video.errors import DecoderBusy, DecoderCrashed, MediaError
from video.long_clip import LongClip
from video.options import DecoderOptions

CLIP = Clip(options=CLOSED, track=Track(1.0, 0.5)).encode()


@pytest.fixture(scope="module")
def plain():
    decoder = VideoDecoder({"workers": 2})
    yield decoder
    decoder.close()


def faulty(fault, **options) -> VideoDecoder:
    """A replica whose workers run `fault` when they are asked for a frame's size."""
    return VideoDecoder({"workers": 1, **options}, size_of=fault)


async def workers_are_well(decoder: VideoDecoder) -> None:
    decoder._size_of = None
    for _ in range(3):
        assert numbers((await decoder.decode_clip(CLIP)).frames)[0] == 0


async def test_a_clip_and_its_sound(plain):
    assert await plain.ready() is True
    clip = await plain.decode_clip(CLIP)
    assert numbers(clip.frames) == [0, 8, 16, 25, 33, 42, 50, 59]
    assert clip.frames.flags.writeable
    assert clip.sound.samples.shape[0] == 2
    clip = await plain.decode_clip(CLIP, {"num_frames": 4}, sound=False)
    assert numbers(clip.frames) == [0, 19, 39, 59]
    assert clip.sound is None
    sound = await plain.decode_sound(sound_file(Track(1.0, 0.5, 44100, 1, "pcm_s16le")))
    assert sound.samples.shape == (1, 44100)
    assert np.abs(sound.samples[0]).argmax() == 22050


async def test_results_travel_on(plain):
    """Ray pickles results once more."""
    clip = await plain.decode_clip(CLIP)
    buffers: list[pickle.PickleBuffer] = []
    copy = pickle.loads(
        pickle.dumps(clip, protocol=5, buffer_callback=buffers.append), buffers=buffers
    )
    assert np.array_equal(copy.frames, clip.frames)
    error = pickle.loads(pickle.dumps(MediaError("a reason")))
    assert error.reason == "a reason"


async def test_bad_files_and_options_are_refused(plain):
    for data, sampling, words in (
        (b"no clip", {}, "no audio or video file"),
        (b"", {}, "no audio or video file"),
        (CLIP, {"fps": 0}, "fps must be between"),
        (CLIP, {"max_frames": 5000}, "more than the limit of 3600"),
        (sound_file(Track(0.1)), {}, "the file has no video track"),
    ):
        with pytest.raises(MediaError, match=words):
            await plain.decode_clip(data, sampling)
    with pytest.raises(MediaError, match="no audio or video file"):
        await plain.decode_sound(b"no sound")
    small = DecoderOptions(max_file_bytes=10)
    with pytest.raises(MediaError, match="more than the limit of 10"):
        small.limits().check_bytes(len(CLIP))


async def test_many_at_once_keep_apart(plain):
    clips = [Clip(frames=20 + n, options=CLOSED).encode() for n in range(6)]
    found = await asyncio.gather(
        *(plain.decode_clip(data, {"num_frames": 2}) for data in clips),
        *(plain.decode_clip(b"broken" * 100) for _ in range(3)),
        return_exceptions=True,
    )
    assert [numbers(clip.frames)[-1] for clip in found[:6]] == [19 + n for n in range(6)]
    assert all(isinstance(error, MediaError) for error in found[6:])


async def test_a_killed_process_costs_one_retry(tmp_path):  # case 44
    decoder = faulty(partial(faults.die_once, str(tmp_path / "mark")))
    try:
        await decoder.ready()
        before = decoder._pool.workers[0].pid
        clip = await decoder.decode_clip(CLIP)
        assert numbers(clip.frames) == [0, 8, 16, 25, 33, 42, 50, 59]
        assert decoder._pool.workers[0].pid != before
        stats = await decoder.stats()
        assert (stats["jobs"], stats["pending_jobs"], stats["deaths"]) == (1, 0, 1)
    finally:
        decoder.close()


async def test_a_file_that_kills_every_process_is_refused(caplog):  # case 44
    decoder = faulty(faults.die)
    try:
        with pytest.raises(MediaError, match="the file crashes the decoder"):
            await decoder.decode_clip(CLIP)
        assert "a decoder process died" in caplog.text
        await workers_are_well(decoder)
    finally:
        decoder.close()


async def test_killing_an_idle_process_is_not_noticed(plain):
    await plain.ready()
    for worker in plain._pool.workers:
        os.kill(worker.pid, signal.SIGKILL)
    clips = await asyncio.gather(*(plain.decode_clip(CLIP) for _ in range(3)))
    assert all(numbers(clip.frames)[-1] == 59 for clip in clips)


async def test_one_dying_process_leaves_the_other_alone(tmp_path):  # case 44
    decoder = VideoDecoder({"workers": 2}, size_of=partial(faults.die_at, 2))
    try:
        bad = decoder.decode_clip(CLIP, {"num_frames": 2})
        good = [decoder.decode_clip(CLIP, {"num_frames": 4}) for _ in range(4)]
        refused, *clips = await asyncio.gather(bad, *good, return_exceptions=True)
        assert isinstance(refused, MediaError)
        assert [numbers(clip.frames) for clip in clips] == [[0, 19, 39, 59]] * 4
    finally:
        decoder.close()


async def test_a_codec_that_hangs_is_killed_and_the_loop_goes_on(monkeypatch):
    monkeypatch.setattr("video.pool.GRACE_SECONDS", 0.3)
    decoder = faulty(faults.hang, timeout_s=1.0)
    try:
        await decoder.ready()
        pid = decoder._pool.workers[0].pid
        started = time.monotonic()
        task = asyncio.create_task(decoder.decode_clip(CLIP))
        lag = await longest_lag(task)
        with pytest.raises(MediaError, match=r"longer than the 1 s"):
            await task
        assert time.monotonic() - started < 10
        assert lag < 0.5  # the event loop never waited for the worker
        assert not psutil.pid_exists(pid)
        decoder._options = DecoderOptions(workers=1)
        decoder._limits = decoder._options.limits()
        await workers_are_well(decoder)
    finally:
        decoder.close()


async def longest_lag(task: asyncio.Task) -> float:
    worst = 0.0
    while not task.done():
        before = time.monotonic()
        await asyncio.sleep(0.01)
        worst = max(worst, time.monotonic() - before - 0.01)
    return worst


async def test_leaving_frees_the_process_at_once(monkeypatch):
    monkeypatch.setattr("video.pool.GRACE_SECONDS", 0.3)
    for fault, killed in ((faults.wait_for_the_budget, False), (faults.hang, True)):
        decoder = faulty(fault)
        try:
            await decoder.ready()
            pid = decoder._pool.workers[0].pid
            task = asyncio.create_task(decoder.decode_clip(CLIP))
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            started = time.monotonic()
            await workers_are_well(decoder)
            assert time.monotonic() - started < 10
            assert (decoder._pool.workers[0].pid != pid) == killed
        finally:
            decoder.close()


async def test_a_storm_of_leaving_callers(plain):  # case 89
    async def impatient(patience: float) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(plain.decode_clip(CLIP), patience)

    await asyncio.gather(*(impatient(n % 7 * 1e-4) for n in range(60)))
    clips = await asyncio.gather(*(plain.decode_clip(CLIP) for _ in range(4)))
    assert all(numbers(clip.frames)[-1] == 59 for clip in clips)
    assert plain._pool._pending == 0


async def test_a_full_queue_refuses(monkeypatch):
    monkeypatch.setattr("video.pool.GRACE_SECONDS", 0.2)
    decoder = faulty(faults.wait_for_the_budget, max_waiting=1)
    try:
        tasks = [asyncio.create_task(decoder.decode_clip(CLIP)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(DecoderBusy):
            await decoder.decode_clip(CLIP)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(1)
        await workers_are_well(decoder)
    finally:
        decoder.close()


async def test_faults_of_ours_are_not_the_files():
    decoder = faulty(faults.blunder)
    try:
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            await decoder.decode_clip(CLIP)
        await workers_are_well(decoder)
    finally:
        decoder.close()


async def test_processes_that_cannot_start(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    decoder = VideoDecoder({"workers": 1})
    try:
        with pytest.raises(DecoderCrashed):
            await decoder.ready()
        with pytest.raises(DecoderCrashed):
            await decoder.decode_clip(CLIP)
        monkeypatch.undo()
        await workers_are_well(decoder)
    finally:
        decoder.close()


async def test_closing_ends_every_process():
    decoder = VideoDecoder({"workers": 2})
    await decoder.ready()
    pids = [worker.pid for worker in decoder._pool.workers]
    decoder.close()
    for _ in range(100):
        if not any(psutil.pid_exists(p) and psutil.Process(p).status() != "zombie" for p in pids):
            break
        await asyncio.sleep(0.02)
    else:
        pytest.fail("a process is still there")
    with pytest.raises(DecoderCrashed, match="shut down"):
        await decoder.decode_clip(CLIP)


def test_options():
    options = DecoderOptions.of({"workers": 3, "fps": 2.0, "num_cpus": 1, "memory_bytes": 3000})
    assert options.workers == 3
    assert options.sampling().fps == 2.0
    assert options.limits().output_pixels == 1000
    assert DecoderOptions.of(options) is options
    assert DecoderOptions.of(None) == DecoderOptions()
    for bad in ({"workers": 0}, {"threads": "2"}, {"timeout_s": -1}, {"fps": 0}):
        with pytest.raises(ValueError, match="must be"):
            DecoderOptions.of(bad)
    with pytest.raises(TypeError):
        DecoderOptions.of([1])  # type: ignore[arg-type]


def test_the_replicas_module_is_light():
    import subprocess
    import sys

    check = "import video.deployment, sys; print({'av', 'torch', 'PIL'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert found.stdout.strip() == "set()"


async def test_a_long_clip_in_parts(plain):
    data = Clip(200, options=CLOSED, track=Track(7.0, 0.5)).encode()
    long = VideoDecoder({"workers": 2, "part_frames": 50})
    try:
        sampling = {"fps": 1000}
        whole = await long.decode_clip(data, sampling)
        plan = await long.begin_clip(np.frombuffer(data, np.uint8), "token", sampling)
        assert isinstance(plan, LongClip)
        assert plan.size == whole.frames.shape[1:3]
        parts = await asyncio.gather(
            *(long.decode_part(data, "token", sampling, plan.size, p) for p in plan.parts)
        )
        assert len(parts) >= 3
        assert np.array_equal(np.concatenate([p.frames for p in parts]), whole.frames)
        sound = await long.decode_sound_part(data, "token", plan.sound[0])
        assert sound.samples.shape[1] >= 6 * 48000
        short = await long.begin_clip(CLIP, "other")
        assert numbers(short.frames) == [0, 8, 16, 25, 33, 42, 50, 59]
        stats = await long.stats()
        assert (stats["held_files"], stats["held_bytes"]) == (1, len(data))
        with pytest.raises(MediaError, match="no audio or video file"):
            await long.begin_clip(b"no clip", "third")
    finally:
        long.close()


async def test_parts_share_the_time_budget_of_their_file():
    data = Clip(200, options=CLOSED).encode()
    long = VideoDecoder({"workers": 2, "part_frames": 50, "timeout_s": 60.0})
    try:
        sampling = {"fps": 1000}
        plan = await long.begin_clip(data, "token", sampling)
        assert isinstance(plan, LongClip)
        call = (data, "token", sampling, plan.size, plan.parts[0])
        long._accounts["token"]._spent = 59.0
        assert len((await long.decode_part(*call)).frames) >= 50
        long._accounts["token"]._spent = 61.0
        with pytest.raises(MediaError, match="longer than the 60 s one file may take"):
            await long.decode_part(*call)
        again = await long.begin_clip(data, "token", sampling)  # another question
        assert isinstance(again, LongClip)
        assert len((await long.decode_part(*call)).frames) >= 50
    finally:
        long.close()
