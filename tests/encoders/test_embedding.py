"""Embedding rows and their layout."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from encoders.embedding import Embedding, RowsArray, audio_layout, image_layout


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_survive_numpy_and_pickle(dtype: torch.dtype) -> None:
    rows = torch.randn(5, 7).to(dtype)
    array = RowsArray.from_tensor(rows)
    assert isinstance(array.data, np.ndarray)
    buffers: list[pickle.PickleBuffer] = []
    packed = pickle.dumps(array, protocol=5, buffer_callback=buffers.append)
    # Out-of-band buffers are what Ray maps into shared memory instead of copying.
    assert sum(buffer.raw().nbytes for buffer in buffers) == rows.nbytes
    back = pickle.loads(packed, buffers=[bytes(buffer) for buffer in buffers])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(back.tensor(), rows)
    assert back.tensor().dtype == dtype


def test_tensor_shares_memory() -> None:
    array = RowsArray.from_tensor(torch.zeros(2, 3, dtype=torch.bfloat16))
    assert array.tensor().data_ptr() == array.data.ctypes.data
    assert array.slice(1, 2).tensor().data_ptr() == array.data[1:].ctypes.data


def test_concat_needs_one_type() -> None:
    left, right = (
        RowsArray.from_tensor(torch.zeros(1, 2, dtype=d)) for d in (torch.float32, torch.float16)
    )
    assert len(RowsArray.concat([left, left])) == 2
    with pytest.raises(ValueError, match="float16"):
        RowsArray.concat([left, right])
    with pytest.raises(ValueError, match="two axes"):
        RowsArray.from_tensor(torch.zeros(3))


def test_layout_and_rows_must_agree() -> None:
    rows = RowsArray.from_tensor(torch.zeros(4, 2))
    assert Embedding("image", "0" * 64, image_layout(4), rows).n_rows == 4
    assert Embedding("audio", "0" * 64, audio_layout(9), rows="a reference").n_rows == 9
    with pytest.raises(ValueError, match="needs 5 rows, the array has 4"):
        Embedding("image", "0" * 64, image_layout(5), rows)


def test_the_light_modules_import_no_torch() -> None:
    code = (
        "import sys, encoders.embedding, encoders.digest, encoders.errors, encoders.video_layout,"
        "encoders.options, encoders.image_encoder, encoders.audio_encoder;"
        "print([m for m in ('torch', 'PIL', 'av', 'sglang') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
