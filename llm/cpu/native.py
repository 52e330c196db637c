"""The decoder kernel (``llm/cpu/kernels``) seen from Python: its structs and its functions.

Weights are packed once: 32 output columns form a panel that lies contiguous as [K, 32]. A gated
projection's panel holds 16 rows of the gate, then the same 16 of the up projection.
"""

from __future__ import annotations

import ctypes
import functools
import logging

import torch
import torch.nn.functional as F

from llm.cpu.build import best_level, library

logger = logging.getLogger(__name__)

PANEL = 32
MAX_WIDTH = 256
MAX_SHARING = 64
MAX_KEY_HEADS = 32

_pointer, _int, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class Layer(ctypes.Structure):
    """One decoder layer; see ``OmniLayer`` in decoder.h."""

    _fields_ = (
        *((name, _pointer) for name in (
            "attention_norm", "ffn_norm", "sinks", "cos_sin", "router", "router_bias",
            "qkv", "o", "gate_up", "down", "keys", "values")),
        *((name, _int) for name in (
            "heads", "kv_heads", "key_width", "value_width", "rotary", "window",
            "experts", "top_k", "inner", "renormalize")),
        *((name, _float) for name in ("scale", "value_scale", "routed_scale", "unused")),
    )  # fmt: skip


class Decoder(ctypes.Structure):
    """Layers, final norm and types; see ``OmniDecoder``."""

    _fields_ = (
        ("layers", ctypes.POINTER(Layer)),
        ("final_norm", _pointer),
        *((name, _int) for name in ("layer_count", "hidden", "narrow_weights", "narrow_cache")),
        ("epsilon", _float),
        ("unused", _float),
    )


class Batch(ctypes.Structure):
    """The rows of one forward pass; see ``OmniBatch``."""

    _fields_ = (
        *((name, _pointer) for name in (
            "positions", "slots", "pools", "prefix", "row_counts", "request_slots", "to_window",
            "residual", "out")),
        *((name, _int) for name in (
            "rows", "requests", "rows_each", "prefix_offset", "request_stride")),
    )  # fmt: skip


class Draft(ctypes.Structure):
    """One MTP layer; see ``OmniDraft`` in step.h."""

    _fields_ = (
        ("decoder", Decoder),
        *((name, _pointer) for name in (
            "embedding_norm", "state_norm", "projection", "to_window")),
        ("narrow_projection", _int),
    )  # fmt: skip


class Step(ctypes.Structure):
    """A decode step of greedy requests with MTP; see ``OmniStep``."""

    _fields_ = (
        ("target", ctypes.POINTER(Decoder)),
        ("drafts", ctypes.POINTER(Draft)),
        *((name, _pointer) for name in (
            "embeddings", "head", "last", "drafted", "predicted", "accepted", "next")),
        *((name, _int) for name in (
            "draft_count", "vocabulary", "narrow_embeddings", "narrow_head")),
    )  # fmt: skip


class Kernel:
    """The loaded library.

    Raises OSError when the file does not load and RuntimeError when its structs are not ours.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self.forward = self._library.omni_forward
        self.forward.argtypes = (ctypes.POINTER(Decoder), ctypes.POINTER(Batch))
        self.forward.restype = None
        self.greedy_step = self._library.omni_greedy_step
        self.greedy_step.argtypes = (ctypes.POINTER(Step), ctypes.POINTER(Batch))
        self.greedy_step.restype = None
        self._threads = self._library.omni_threads
        self._threads.argtypes, self._threads.restype = (_int,), None
        self._linear = self._library.omni_linear
        self._linear.argtypes = (_pointer, _int, _int, _pointer, _int, _int, _pointer)
        self._linear.restype = None
        self._draft_input = self._library.omni_draft_input
        self._draft_input.argtypes = (*(_pointer,) * 4, _int, _int, _float, _pointer)
        self._draft_input.restype = None
        layout = self._library.omni_layout
        layout.restype = _int
        ours = 0
        for struct in (Layer, Decoder, Batch, Draft, Step):
            ours = ours * 1000 + ctypes.sizeof(struct)
        if layout() != ours:
            raise RuntimeError(f"{path} was built for other structs: {layout()}, not {ours}")

    def use_threads(self, count: int) -> None:
        """How many threads later calls of this process may use. Raises ValueError below 1."""
        if count < 1:
            raise ValueError(f"the decoder needs a thread, not {count}")
        self._threads(count)

    def linear(self, x: torch.Tensor, packed: torch.Tensor, columns: int) -> torch.Tensor:
        """x [T, K] float32 times packed weights -> [T, columns] float32."""
        x = x.contiguous()
        out = torch.empty(x.shape[0], columns)
        self._linear(
            x.data_ptr(),
            x.shape[0],
            x.shape[1],
            packed.data_ptr(),
            columns,
            int(packed.dtype == torch.bfloat16),
            out.data_ptr(),
        )
        return out

    def draft_input(
        self,
        embedding: torch.Tensor,
        state: torch.Tensor,
        embedding_norm: torch.Tensor,
        state_norm: torch.Tensor,
        epsilon: float,
    ) -> torch.Tensor:
        """Both inputs of a draft layer [T, H], normalised and side by side [T, 2 H]."""
        rows, hidden = embedding.shape
        out = torch.empty(rows, 2 * hidden)
        self._draft_input(
            embedding.contiguous().data_ptr(),
            state.contiguous().data_ptr(),
            embedding_norm.data_ptr(),
            state_norm.data_ptr(),
            rows,
            hidden,
            epsilon,
            out.data_ptr(),
        )
        return out


@functools.cache
def kernel() -> Kernel | None:
    """The kernel for this machine, or None (and one warning) where there is none."""
    level = best_level()
    if level is None:
        logger.warning("the CPU has no AVX2: the language model runs in plain PyTorch")
        return None
    path = library(level)
    if not path.exists():
        logger.warning(
            "%s is not built (make env does): the language model runs in plain PyTorch", path.name
        )
        return None
    return Kernel(str(path))


def pack(weight: torch.Tensor) -> torch.Tensor:
    """[N, K] -> panels [ceil(N / 32), K, 32], padded with zeros; the same dtype."""
    n, k = weight.shape
    return F.pad(weight, (0, 0, 0, -n % PANEL)).view(-1, PANEL, k).transpose(1, 2).contiguous()


def pack_gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Gate and up projections [I, K] each -> panels [ceil(I / 16), K, 32]."""
    half = PANEL // 2
    inner, k = gate.shape
    parts = [F.pad(w, (0, 0, 0, -inner % half)).view(-1, half, k) for w in (gate, up)]
    return torch.cat(parts, 1).transpose(1, 2).contiguous()
