"""Streams of worker threads, with a stand-in for the accelerator."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from encoders.device import side_stream


class Stream:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.events: list[str] = []

    def synchronize(self) -> None:
        self.events.append("synchronize")


class Cuda:
    """`torch.cuda` as far as it is used."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []

    def Stream(self, device: torch.device) -> Stream:
        self.streams.append(Stream(device))
        return self.streams[-1]

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        stream.events.append("enter")
        yield
        stream.events.append("leave")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    found = Cuda()
    monkeypatch.setattr(torch, "cuda", found)
    return found


def test_each_thread_has_a_stream_and_waits_for_it(cuda: Cuda) -> None:
    device = torch.device("cuda", 1)

    def work() -> None:
        for _ in range(2):
            with side_stream(device):
                pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [stream.device for stream in cuda.streams] == [device] * 3
    for stream in cuda.streams:
        assert stream.events == ["enter", "leave", "synchronize"] * 2


def test_an_error_comes_out_of_the_block(cuda: Cuda) -> None:
    def work() -> None:
        with side_stream(torch.device("cuda")):
            raise ValueError("bad pixels")

    with pytest.raises(ValueError, match="bad pixels"):
        work()


def test_a_cpu_has_none(cuda: Cuda) -> None:
    with side_stream(torch.device("cpu")):
        assert float(torch.ones(2).sum()) == 2
    assert cuda.streams == []
