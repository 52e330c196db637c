"""A fixed number of decoder processes, each replaced when it dies (case 44)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from video import shared
from video.budget import Account
from video.errors import Cancelled, DecoderBusy, DecoderCrashed, MediaError
from video.protocol import CANCEL, READY, Channel, Job, Reply

log = logging.getLogger(__name__)

START_SECONDS = 60.0
"""A process that has not reported by then is given up."""
POLL_SECONDS = 0.1
"""How soon a waiting thread notices that its caller has left."""
GRACE_SECONDS = 2.0
"""What a process gets beyond the file's time budget, or after being told to stop, before it is
killed: codecs look at neither."""


class _Died(Exception):
    """The process ended in the middle of a job."""


class WorkerProcess:
    """One decoder process and the socket to it. Used by one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._reported = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def launch(self) -> None:
        """Starts the process without waiting for it. A fresh interpreter, not a fork: the replica
        has threads, and its main module is not for the child to run again."""
        self.kill()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "video.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
                | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
                # With an arena for each thread, glibc keeps what only one of them once needed.
                | {"MALLOC_ARENA_MAX": "1"},
            )
        self._channel = Channel(ours)
        self._reported = False

    def ensure(self) -> None:
        """Blocks until a process takes jobs, started anew if need be. Raises DecoderCrashed when
        it does not get there."""
        for _ in range(2):  # one launched earlier may have died since
            if not self.alive():
                self.launch()
            assert self._channel is not None
            with contextlib.suppress(EOFError, OSError):
                if not self._reported and self._channel.poll(START_SECONDS):
                    self._reported = self._channel.receive() == READY
            if self._reported:
                return
            self.kill()
        raise DecoderCrashed("a decoder process could not be started")

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Ends the process from another thread than the one that uses it."""
        if self._process is not None:
            self._process.kill()

    def run(
        self, job: Job, data: bytes | memoryview | shared.Held, cancelled: threading.Event
    ) -> Any:
        """Sends a job, waits for the reply and returns its Clip or Sound.

        Raises MediaError when the file is refused or overruns its budget and Cancelled when the
        caller left; a process that does not let go by itself is killed. Raises RuntimeError for a
        fault of ours in the process, and _Died when the process is gone.
        """
        assert self._channel is not None
        descriptor = shared.share(data)
        try:
            self._channel.send(pickle.dumps(job), [descriptor])
            self._wait(job, cancelled)
            reply: Reply = pickle.loads(self._channel.receive())
            if reply.packed is not None:
                descriptors = self._channel.receive_descriptors(len(reply.packed.sizes))
                return shared.unpack(reply.packed, descriptors)
        except (EOFError, OSError) as error:
            raise _Died from error
        finally:
            os.close(descriptor)
        if reply.status == "refused":
            raise MediaError(reply.reason)
        if reply.status == "cancelled":
            raise Cancelled
        raise RuntimeError(f"decoding failed in the worker process:\n{reply.reason}")

    def kill(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _wait(self, job: Job, cancelled: threading.Event) -> None:
        assert self._channel is not None
        seconds = job.limits.decode_seconds
        deadline = time.monotonic() + max(0.0, seconds - job.spent) + GRACE_SECONDS
        told = False
        while not self._channel.poll(POLL_SECONDS):
            if cancelled.is_set() and not told:
                told = True
                self._channel.send(CANCEL)
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS / 4)
            if time.monotonic() > deadline:
                self.kill()
                if told:
                    raise Cancelled
                raise MediaError(f"decoding took longer than the {seconds:g} s one file may take")


class WorkerPool:
    """Runs jobs on `workers` processes; at most `waiting` more are queued."""

    def __init__(self, workers: int, waiting: int) -> None:
        self._limit = workers + waiting
        self._pending = 0
        self._jobs = 0
        self._deaths = 0
        self._lock = threading.Lock()
        self._closed = False
        self._threads = ThreadPoolExecutor(workers, "video-worker")
        self._idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        self.workers = [WorkerProcess() for _ in range(workers)]
        for worker in self.workers:
            worker.launch()
        self._started = self._threads.submit(self._start)

    def _start(self) -> None:
        try:
            for worker in self.workers:
                worker.ensure()
        finally:
            for worker in self.workers:
                self._idle.put(worker)

    async def ready(self) -> None:
        """Returns once every process has started. Raises DecoderCrashed when one cannot."""
        await asyncio.shield(asyncio.wrap_future(self._started))

    async def run(
        self, job: Job, data: bytes | memoryview | shared.Held, account: Account | None = None
    ) -> Any:
        """The job's Clip or Sound. Never blocks the event loop; leaving early stops the work.

        account: that of the file, when it has several jobs: they share its time budget.

        A job whose process dies is tried once more, on a new process: the second death is the
        file's fault and raises MediaError. Raises DecoderBusy when the queue is full.
        """
        if self._closed:
            raise DecoderCrashed("the decoder has been shut down")
        with self._lock:
            if self._pending >= self._limit:
                raise DecoderBusy(f"{self._pending} files are being decoded or wait already")
            self._pending += 1
            self._jobs += 1
        cancelled = threading.Event()
        future = self._threads.submit(self._run, job, data, cancelled, account or Account())
        future.add_done_callback(self._done)
        try:
            return await asyncio.wrap_future(future)
        finally:
            cancelled.set()

    def _done(self, _: Future[Any]) -> None:
        with self._lock:
            self._pending -= 1

    def _run(
        self,
        job: Job,
        data: bytes | memoryview | shared.Held,
        cancelled: threading.Event,
        account: Account,
    ) -> Any:
        worker = self._idle.get()
        try:
            for _ in range(2):
                if self._closed:
                    raise DecoderCrashed("the decoder has been shut down")
                if cancelled.is_set():
                    raise Cancelled
                worker.ensure()
                try:
                    with account.job() as spent:
                        return worker.run(replace(job, spent=spent), data, cancelled)
                except _Died:
                    log.warning("a decoder process died on a file of %d bytes", job.size)
                    with self._lock:
                        self._deaths += 1
                    worker.kill()
            raise MediaError("the file crashes the decoder")
        finally:
            if not worker.alive() and not self._closed:
                worker.launch()  # gets ready while nobody waits for it
            self._idle.put(worker)

    def report(self) -> dict[str, int]:
        """Jobs that run or wait, and since the start: jobs taken, processes that died in one."""
        with self._lock:
            return {
                "processes": len(self.workers),
                "pending_jobs": self._pending,
                "jobs": self._jobs,
                "deaths": self._deaths,
            }

    def close(self) -> None:
        """Kills every process; jobs under way fail with DecoderCrashed."""
        self._closed = True
        for worker in self.workers:
            worker.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
