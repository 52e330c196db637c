"""Encoded images to upright RGB pixels."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps

from encoders.errors import MediaError
from encoders.vision.decode import FORMATS, decode_image


def encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def gradient(width: int = 24, height: int = 16) -> Image.Image:
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    pixels = np.stack([x * 10, y * 15, (x + y) * 6], axis=-1).astype(np.uint8)
    return Image.fromarray(pixels)


def exif(orientation: int, order: str = "<") -> bytes:
    """An EXIF block with one orientation entry in little ("<") or big (">") endian order."""
    mark = b"II*\x00" if order == "<" else b"MM\x00*"
    entry = struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\x00\x00" + mark + struct.pack(order + "IH", 8, 1) + entry + b"\x00" * 4


def test_this_pillow_knows_every_format() -> None:
    assert set(FORMATS) <= set(Image.OPEN)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied(kind: str, orientation: int) -> None:
    # cases 1 and 3
    tag = Image.Exif()
    tag[0x0112] = orientation
    data = encode(gradient(), kind, exif=tag)
    pixels = decode_image(data)
    assert pixels.shape == ((24, 16, 3) if orientation > 4 else (16, 24, 3))
    with Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(pixels, np.asarray(ImageOps.exif_transpose(image)))


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders(order: str) -> None:
    # case 3
    assert decode_image(encode(gradient(), "JPEG", exif=exif(6, order))).shape == (24, 16, 3)


@pytest.mark.parametrize(
    "block",
    [
        b"Exif\x00\x00",
        b"Exif\x00\x00II*\x00\xff\xff\xff\xff",
        b"Exif\x00\x00garbage that is no TIFF header",
        exif(6)[:-10],
        exif(77),
        exif(6).replace(b"\x12\x01\x03\x00", b"\x12\x01\x63\x00"),
    ],
)
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_malformed_exif_is_ignored(block: bytes) -> None:
    # case 3
    data = encode(gradient(), "JPEG", exif=block)
    np.testing.assert_array_equal(decode_image(data), decode_image(encode(gradient(), "JPEG")))


def test_cmyk() -> None:
    # case 4: plain CMYK, and Adobe's inverted form, which Pillow writes and marks
    cyan = Image.new("CMYK", (64, 64), (255, 0, 0, 0))
    for kind in ("JPEG", "TIFF"):
        pixels = decode_image(encode(cyan, kind))
        assert pixels.shape == (64, 64, 3)
        np.testing.assert_allclose(pixels[32, 32], (0, 255, 255), atol=4)


@pytest.mark.parametrize("options", [{"lossless": True}, {"quality": 90}])
def test_webp(options: dict[str, Any]) -> None:
    # case 6
    pixels = decode_image(encode(gradient(), "WEBP", **options))
    error = np.abs(pixels.astype(int) - np.asarray(gradient()))
    assert error.mean() < (1 if "lossless" in options else 8)


@pytest.mark.parametrize("kind", ["WEBP", "GIF", "PNG", "TIFF"])
def test_animation_is_its_first_frame(kind: str) -> None:
    # case 6
    frames = [Image.new("RGB", (40, 30), colour) for colour in ("red", "green", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    np.testing.assert_array_equal(decode_image(data), np.asarray(frames[0]))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF"])
def test_transparency_is_shown_on_white(kind: str) -> None:
    image = Image.new("RGBA", (20, 10), (255, 0, 0, 255))
    image.paste((0, 0, 255, 0), (0, 0, 10, 10))
    options = {"lossless": True} if kind == "WEBP" else {}
    pixels = decode_image(encode(image, kind, **options))
    assert tuple(pixels[5, 4]) == (255, 255, 255)
    assert tuple(pixels[5, 15]) == (255, 0, 0)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I", "F"])
def test_modes_become_rgb(mode: str) -> None:
    grey = Image.fromarray(np.full((10, 12), 200, np.uint8))
    if mode in ("I;16", "I"):
        image = Image.fromarray(
            np.full((10, 12), 200 * 257, np.uint16 if ";" in mode else np.int32)
        )
    elif mode == "F":
        image = Image.fromarray(np.full((10, 12), 200 / 255, np.float32))
    else:
        image = grey.convert(mode)
    pixels = decode_image(encode(image, "TIFF" if mode in ("F", "I") else "PNG"))
    assert pixels.shape == (10, 12, 3)
    assert pixels.dtype == np.uint8
    if mode != "1":
        np.testing.assert_array_equal(pixels, 200)


def test_palette_transparency_and_palette_colours() -> None:
    image = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8)).convert("P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    pixels = decode_image(encode(image, "PNG", transparency=1))
    assert pixels.reshape(-1, 3).tolist() == [[255, 0, 0], [255] * 3, [0, 0, 255], [255] * 3]


def test_lab_colours_are_converted() -> None:
    profile = ImageCms.buildTransform(
        ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB"
    )
    lab = ImageCms.applyTransform(Image.new("RGB", (8, 8), (200, 40, 90)), profile)
    assert lab is not None
    pixels = decode_image(encode(lab, "TIFF"))
    np.testing.assert_allclose(pixels[4, 4], (200, 40, 90), atol=4)


def png(width: int, height: int, packed: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", packed), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


@pytest.mark.parametrize("size", [(9_000, 9_000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_the_header_alone_refuses_a_bomb(size: tuple[int, int]) -> None:
    # case 8: whatever the pixel data holds
    with pytest.raises(MediaError, match="more than 64000000 pixels"):
        decode_image(png(*size, zlib.compress(b"\x00" * 100)))


def peak_growth(data: bytes) -> tuple[str, int]:
    """Outcome of decoding `data` in a process of its own, and by how many MB that raised its peak
    of resident memory."""
    code = (
        "import resource, sys\n"
        "from encoders.vision.decode import decode_image\n"
        "data = sys.stdin.buffer.read()\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "before = peak()\n"
        "try: outcome = str(decode_image(data).shape)\n"
        "except ValueError as error: outcome = error.reason\n"
        "print(outcome, peak() - before, sep=';')"
    )
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    outcome, grown = done.stdout.decode().strip().split(";")
    return outcome, int(grown)


def test_a_real_bomb_is_refused_cheaply() -> None:
    # case 8: 1 MB of zlib that would be 243 MB of pixels
    deflate = zlib.compressobj(1)
    row = b"\x00" * (9_000 * 3 + 1)
    body = b"".join(deflate.compress(row) for _ in range(9_000)) + deflate.flush()
    outcome, grown = peak_growth(png(9_000, 9_000, body))
    assert outcome == "the image is 9000 x 9000, more than 64000000 pixels"
    assert grown < 4


def test_a_long_animation_costs_its_first_frame() -> None:
    # case 8: 40 frames of 3 million pixels each; those behind the first are never decoded
    frame = Image.new("P", (2000, 1500))
    more = [Image.new("P", (2000, 1500), n) for n in range(1, 40)]
    outcome, grown = peak_growth(encode(frame, "GIF", save_all=True, append_images=more))
    assert outcome == "(1500, 2000, 3)"
    assert grown < 50


def test_the_limit_is_a_setting() -> None:
    data = encode(gradient(24, 16))
    assert decode_image(data, max_pixels=24 * 16).shape == (16, 24, 3)
    with pytest.raises(MediaError, match="24 x 16, more than 383 pixels"):
        decode_image(data, max_pixels=383)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_truncated_files_are_errors(kind: str, share: float) -> None:
    # case 11
    noise = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    data = encode(Image.fromarray(noise), kind)
    with pytest.raises(MediaError) as caught:
        decode_image(data[: int(len(data) * share)])
    assert len(caught.value.reason) < 100


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x89PNG\r\n\x1a",  # 7 bytes of the signature
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"no image at all" * 20,
        png(4, 4, zlib.compress(b"")),
        png(0, 4, zlib.compress(b"")),
    ],
)
def test_no_image_is_an_error_that_shows_nothing_of_it(data: bytes) -> None:
    # case 11
    with pytest.raises(MediaError) as caught:
        decode_image(data)
    assert len(str(caught.value)) < 100
    assert "PS-Adobe" not in str(caught.value)


def test_damaged_bytes_never_raise_anything_else() -> None:
    # case 11: flipped Huffman bytes, filters, palettes; a picture or a MediaError
    rng = np.random.default_rng(2)
    noise = Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8))
    outcomes = set()
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF", "JPEG2000"):
        clean = encode(noise, kind)
        for _ in range(25):
            data = bytearray(clean)
            for place in rng.integers(0, len(data), 8):
                data[place] = rng.integers(0, 256)
            try:
                outcomes.add(decode_image(bytes(data)).dtype)
            except MediaError:
                outcomes.add(MediaError)
    assert outcomes == {np.dtype(np.uint8), MediaError}


def test_gif_frame_beyond_the_canvas() -> None:
    # case 11: Pillow grows the canvas to the frame; the size limit still holds
    data = bytearray(encode(Image.new("P", (16, 16), 3), "GIF"))
    place = data.index(b"\x2c\x00\x00\x00\x00")
    data[place + 1 : place + 5] = struct.pack("<HH", 5, 7)
    assert decode_image(bytes(data)).shape == (16 + 7, 16 + 5, 3)
    data[place + 1 : place + 5] = struct.pack("<HH", 60_000, 60_000)
    with pytest.raises(MediaError):
        decode_image(bytes(data))


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (2000, 9)])
def test_tiny_pictures_decode(size: tuple[int, int]) -> None:
    # case 9: what happens next is the size rule's
    assert decode_image(encode(Image.new("RGB", size))).shape == (size[1], size[0], 3)
