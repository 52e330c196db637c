"""Encoded image bytes to upright RGB pixels on the CPU, with Pillow.

Runs in worker threads (Pillow's decoders release the GIL). Everything that a client can send
either becomes pixels or a `MediaError`; a picture is refused from its header before its pixels
are allocated.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image, ImageCms

from encoders.errors import MediaError

# Raster formats only: no EPS, PDF or WMF, whose readers run other programs, and no container
# (ICO) whose inner picture may be larger than its header says.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM")
MAX_IMAGE_PIXELS = 64_000_000

_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

Image.init()
# Our own limit speaks first; Pillow's warning below its hard limit would only reach a log.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def decode_image(data: bytes, max_pixels: int = MAX_IMAGE_PIXELS) -> np.ndarray:
    """uint8 [height, width, 3] RGB pixels, upright, of an encoded image.

    The EXIF orientation is applied (a malformed EXIF block is ignored), transparency is shown on
    white, an animation is its first frame, 16-bit grey is scaled to 8 bits. Raises `MediaError`
    for anything that is no whole picture, or has more than `max_pixels` pixels: that check needs
    the header only. (Pillow itself refuses more than about 179 million pixels.)
    """
    if not data:
        raise MediaError("the image is empty")
    try:
        with _open(data, max_pixels) as image:
            return _pixels(image)
    except MediaError:
        raise
    except MemoryError:
        raise MediaError("the image needs more memory than there is") from None
    except Exception:  # damaged data raises nearly anything out of the format readers
        raise MediaError("the image data is truncated or damaged") from None


def _open(data: bytes, max_pixels: int) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError:
        limit = min(max_pixels, 2 * (Image.MAX_IMAGE_PIXELS or max_pixels))
        raise MediaError(f"the image has more than {limit} pixels") from None
    except Exception:
        raise MediaError("the data is not an image in a supported format") from None
    width, height = image.size
    if width * height > max_pixels:
        image.close()
        raise MediaError(f"the image is {width} x {height}, more than {max_pixels} pixels")
    return image


def _pixels(image: Image.Image) -> np.ndarray:
    image.load()
    method = _UPRIGHT.get(_orientation(image))
    upright = image if method is None else image.transpose(method)
    # transpose() keeps `info`, which says whether a palette or grey value means "transparent".
    return np.asarray(_rgb(upright))


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # EXIF of any kind of damage: the picture itself may be fine
        return 1


def _rgb(image: Image.Image) -> Image.Image:
    mode = image.mode
    if mode == "La":  # the one mode that Pillow cannot convert to colours at once
        return _rgb(image.convert("LA"))
    if mode == "RGB" and not image.has_transparency_data:
        return image
    if mode.startswith("I;16") or mode == "I":
        return _scaled_grey(np.clip(np.asarray(image), 0, 65535) / 257.0)
    if mode == "F":
        grey = np.nan_to_num(np.asarray(image))
        return _scaled_grey(grey * 255.0 if grey.min() >= 0 and grey.max() <= 1 else grey)
    if mode == "LAB":
        return _from_lab(image)
    if image.has_transparency_data:
        coloured = image.convert("RGBA")
        white = Image.new("RGBA", coloured.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, coloured).convert("RGB")
    return image.convert("RGB")


def _scaled_grey(grey: np.ndarray) -> Image.Image:
    """8-bit picture of grey values 0..255."""
    return Image.fromarray(np.clip(np.rint(grey), 0, 255).astype(np.uint8)).convert("RGB")


def _from_lab(image: Image.Image) -> Image.Image:
    lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    converted = ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
    if converted is None:
        raise MediaError("the image's colours cannot be converted")
    return converted
