"""The store's directory: who uses it, and removing it with the last user.

Every process that uses a directory holds a shared lock on a file in it, which the kernel releases
however the process ends. A directory whose lock nobody holds belongs to nobody.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

PREFIX = "omniserve-"
_USERS = ".users"
# A directory without a lock file is younger than this or was left half made.
_NEW_SECONDS = 60.0


def join(directory: Path) -> int:
    """Create the directory if need be and use it; closing the descriptor ends the use."""
    while True:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            users = os.open(directory / _USERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # removed in between
            continue
        fcntl.flock(users, fcntl.LOCK_SH)
        if _same_file(users, directory / _USERS):
            return users
        os.close(users)


def leave(directory: Path, users: int) -> None:
    """End the use; the last user removes the directory."""
    os.close(users)
    remove_unused(directory)


def sweep(root: Path) -> int:
    """Remove the directories of this user under `root` that nobody uses; returns how many."""
    found = 0
    with suppress(OSError):
        for path in list(root.glob(f"{PREFIX}*")):
            found += remove_unused(path)
    return found


def remove_unused(directory: Path) -> bool:
    """Remove a directory of this user unless somebody uses it."""
    try:
        status = directory.lstat()
        if status.st_uid != os.getuid():
            return False
        users = os.open(directory / _USERS, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        with suppress(OSError):
            if time.time() - directory.lstat().st_mtime > _NEW_SECONDS:
                shutil.rmtree(directory, ignore_errors=True)
                return True
        return False
    except OSError:
        return False
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _same_file(users, directory / _USERS):
            return False
        # Under another name first: whoever joins now makes a directory of his own.
        doomed = directory.with_name(f"{directory.name}.{os.getpid()}.{time.monotonic_ns()}")
        directory.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        return True
    except OSError:
        return False
    finally:
        os.close(users)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
