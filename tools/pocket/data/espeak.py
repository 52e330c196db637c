"""Speech by the library espeak-ng, which comes as a wheel (espeakng-loader).

The C interface is that of espeak-ng's ``speak_lib.h``; the library keeps one voice per process.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from threading import Lock

import numpy as np

_SYNCHRONOUS, _NO_EXIT, _UTF8 = 2, 0x8000, 1
_RATE, _PITCH = 1, 3  # espeak_PARAMETER
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


class _Voice(ctypes.Structure):
    """espeak_VOICE."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("languages", ctypes.c_char_p),
        ("identifier", ctypes.c_char_p),
        ("gender", ctypes.c_ubyte),
        ("age", ctypes.c_ubyte),
        ("variant", ctypes.c_ubyte),
        ("xx1", ctypes.c_ubyte),
        ("score", ctypes.c_int),
        ("spare", ctypes.c_void_p),
    )


_lock = Lock()
_heard: list[np.ndarray] = []


@_CALLBACK
def _take(samples: ctypes._Pointer[ctypes.c_short], count: int, _: int | None) -> int:
    if samples and count > 0:
        _heard.append(np.ctypeslib.as_array(samples, (count,)).copy())
    return 0  # go on


@lru_cache(maxsize=1)
def _library() -> tuple[ctypes.CDLL, int]:
    """The initialised library and its sample rate in Hz."""
    import espeakng_loader

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    data = espeakng_loader.get_data_path().encode()
    rate: int = library.espeak_Initialize(_SYNCHRONOUS, 0, data, _NO_EXIT)
    if rate <= 0:
        raise RuntimeError("espeak-ng does not start")
    library.espeak_SetSynthCallback(_take)
    return library, rate


def synthesise(text: str, voice: str, speed: int, pitch: int) -> tuple[np.ndarray, int]:
    """int16 [n] and their rate in Hz; ``speed`` in words per minute, ``pitch`` 0 to 99.

    The same call sounds the same each time, but its phases depend on what was spoken before.
    Raises ``ValueError`` for a voice that the library does not have.
    """
    with _lock:
        library, rate = _library()
        # A voice goes by its own name or by its language; the program tries the same two.
        wanted = _Voice(languages=voice.encode())
        if library.espeak_SetVoiceByName(voice.encode()) and (
            library.espeak_SetVoiceByProperties(ctypes.byref(wanted))
        ):
            raise ValueError(f"espeak-ng has no voice {voice!r}")
        library.espeak_SetParameter(_RATE, speed, 0)
        library.espeak_SetParameter(_PITCH, pitch, 0)
        _heard.clear()
        data = text.encode()
        failed = library.espeak_Synth(data, len(data) + 1, 0, 0, 0, _UTF8, None, None)
        if failed:
            raise RuntimeError(f"espeak-ng cannot speak {text!r}: error {failed}")
        return np.concatenate([np.zeros(0, np.int16), *_heard]), rate
