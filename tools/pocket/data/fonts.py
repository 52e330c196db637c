"""Fonts that training prints with. Debian packages of the files: see ``PACKAGES``."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

from PIL import ImageFont

from tools.pocket.data.sample import Split

BUILTIN = "builtin"  # Pillow's own scalable font, always there
ROOTS = (Path("/usr/share/fonts"), Path("/usr/local/share/fonts"))
PACKAGES = (
    *("fonts-liberation", "fonts-dejavu-core", "fonts-dejavu-extra", "fonts-freefont-ttf"),
    *("fonts-roboto-unhinted", "fonts-open-sans", "fonts-lato", "fonts-linuxlibertine"),
    *("fonts-crosextra-caladea", "fonts-crosextra-carlito", "fonts-cantarell"),
    *("fonts-inconsolata", "fonts-noto-core"),
)
TRAIN = (
    *(BUILTIN, "LiberationSans-Regular.ttf", "LiberationSans-Bold.ttf"),
    *("LiberationSerif-Regular.ttf", "LiberationSerif-Bold.ttf", "LiberationMono-Regular.ttf"),
    *("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSerif.ttf", "DejaVuSansMono.ttf"),
    *("DejaVuSansCondensed.ttf", "FreeSans.ttf", "FreeSansBold.ttf", "FreeSerif.ttf"),
    *("FreeMonoBold.ttf", "Roboto-Regular.ttf", "Roboto-Medium.ttf", "OpenSans-Regular.ttf"),
    *("OpenSans-Semibold.ttf", "Lato-Regular.ttf", "Lato-Bold.ttf", "LinLibertine_R.otf"),
    *("LinBiolinum_R.otf", "Carlito-Bold.ttf", "Inconsolata.otf", "NotoSerif-Bold.ttf"),
    *("LiberationSansNarrow-Regular.ttf", "LiberationMono-Bold.ttf", "DejaVuSerif-Bold.ttf"),
    *("DejaVuSansMono-Bold.ttf", "DejaVuSerifCondensed.ttf", "FreeMono.ttf", "FreeSerifBold.ttf"),
    *("Roboto-Bold.ttf", "Roboto-Light.ttf", "RobotoCondensed-Regular.ttf", "OpenSans-Bold.ttf"),
    *("OpenSans-Light.ttf", "Lato-Medium.ttf", "Lato-Light.ttf", "LinLibertine_RB.otf"),
    *("LinBiolinum_RB.otf", "NotoSans-Bold.ttf"),
)
HELDOUT = (
    *("Cantarell-Regular.otf", "Cantarell-Bold.otf", "NotoSans-Regular.ttf"),
    *("NotoSerif-Regular.ttf", "Caladea-Regular.ttf", "Carlito-Regular.ttf"),
)


def font_names(split: Split) -> tuple[str, ...]:
    return TRAIN if split == "train" else HELDOUT


@cache
def _files() -> dict[str, Path]:
    return {path.name: path for root in ROOTS for path in sorted(root.rglob("*.[to]tf"))}


@lru_cache(maxsize=2048)
def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """The font at ``size`` pixels per em. ``RuntimeError`` names what to install if missing."""
    if name == BUILTIN:
        builtin = ImageFont.load_default(size)
        assert isinstance(builtin, ImageFont.FreeTypeFont)
        return builtin
    path = _files().get(name)
    if path is None:
        raise RuntimeError(f"font {name} is missing: install {' '.join(PACKAGES)}")
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(maxsize=2048)
def capital_band(name: str, size: int) -> tuple[float, float]:
    """Top and bottom of a capital H below the drawing point, in pixels."""
    _, top, _, bottom = font(name, size).getbbox("H")
    return float(top), float(bottom)
