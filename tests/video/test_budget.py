"""Time budgets of files with one job and with many."""

from __future__ import annotations

import pytest

from video.budget import Account, Budget
from video.errors import MediaError


def test_what_earlier_jobs_took_is_gone():
    Budget(10.0, spent=5.0).check()
    with pytest.raises(MediaError, match="longer than the 10 s one file may take"):
        Budget(10.0, spent=11.0).check()


def test_jobs_side_by_side_count_once():
    now = 100.0
    account = Account(clock=lambda: now)
    with account.job() as first:
        now += 3
        with account.job() as second:
            now += 2
        now += 1
    now += 50  # nothing runs: waiting
    with account.job() as third:
        now += 4
        with account.job() as fourth:
            pass
    with account.job() as last:
        pass
    assert (first, second, third, fourth, last) == (0, 3, 6, 10, 10)


def test_a_failed_job_counts_too():
    now = 0.0
    account = Account(clock=lambda: now)

    def fail():
        nonlocal now
        with account.job():
            now += 7
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    with account.job() as spent:
        assert spent == 7
