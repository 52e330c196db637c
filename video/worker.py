"""The process that runs libav: `python -m video.worker DESCRIPTOR`.

One at a time it takes a job and the file's bytes from its socket and sends a reply back. It loads
nothing but av, numpy and Pillow, so it starts in a fraction of a second. When a codec crashes, this
process dies and nothing else does (case 44).
"""

from __future__ import annotations

import contextlib
import pickle
import resource
import signal
import socket
import sys
import traceback
from typing import Any

import av

from video import shared
from video.budget import Budget
from video.decode import decode_clip
from video.errors import Cancelled, MediaError
from video.protocol import CANCEL, READY, Channel, Job, Reply
from video.sound import decode_sound
from video.source import Source


def main(descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when memory runs out, this process goes before any other
    channel = Channel(socket.socket(fileno=descriptor))
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        channel.send(READY)
        while True:
            message = channel.receive()
            if message != CANCEL:  # else it came after the reply it was to stop
                _serve(channel, message)


def _serve(channel: Channel, message: bytes) -> None:
    data_descriptor = channel.receive_descriptors(1)[0]
    arena = shared.Arena()
    try:
        reply, descriptors = _reply(channel, message, data_descriptor, arena)
        channel.send(pickle.dumps(reply), descriptors)
    finally:
        arena.close()


def _reply(
    channel: Channel, message: bytes, data_descriptor: int, arena: shared.Arena
) -> tuple[Reply, list[int]]:
    try:
        job: Job = pickle.loads(message)
        data = shared.view(data_descriptor, job.size)
        packed, descriptors = arena.pack(_work(job, data, channel, arena))
        return Reply("done", packed=packed), descriptors
    except MediaError as error:
        return Reply("refused", error.reason), []
    except Cancelled:
        return Reply("cancelled"), []
    except av.error.FFmpegError:
        return Reply("refused", "the file is damaged"), []
    except MemoryError:
        return Reply("refused", "decoding the file takes more memory than there is"), []
    except Exception:
        return Reply("failed", traceback.format_exc()), []


def _work(job: Job, data: memoryview, channel: Channel, arena: shared.Arena) -> Any:
    budget = Budget(job.limits.decode_seconds, channel.poll, job.spent)
    source = Source(data, job.limits, budget)
    if job.work is not None:
        return job.work(source, arena.allocate)
    if job.options is None:
        return decode_sound(source, arena.allocate)
    return decode_clip(
        source,
        job.options,
        job.size_of,
        sound=job.sound,
        threads=job.threads,
        allocate=arena.allocate,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
