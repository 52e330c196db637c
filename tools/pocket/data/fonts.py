"""Fonts that training prints with, by Debian package.

``apt-get install $(python -m tools.pocket.data.fonts)`` installs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path

from PIL import ImageFont

from tools.pocket.data.sample import Split

BUILTIN = "builtin"  # Pillow's own scalable font, always there
ROOTS = (Path("/usr/share/fonts"), Path("/usr/local/share/fonts"))
TRAIN_OF: Mapping[str, tuple[str, ...]] = {
    "fonts-liberation": (
        *("LiberationSans-Regular.ttf", "LiberationSans-Bold.ttf", "LiberationSerif-Regular.ttf"),
        *("LiberationSerif-Bold.ttf", "LiberationMono-Regular.ttf", "LiberationMono-Bold.ttf"),
        "LiberationSansNarrow-Regular.ttf",
    ),
    "fonts-dejavu-core": (
        *("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSerif.ttf", "DejaVuSerif-Bold.ttf"),
        *("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf"),
    ),
    "fonts-dejavu-extra": ("DejaVuSansCondensed.ttf", "DejaVuSerifCondensed.ttf"),
    "fonts-freefont-ttf": (
        *("FreeSans.ttf", "FreeSansBold.ttf", "FreeSerif.ttf", "FreeSerifBold.ttf"),
        *("FreeMono.ttf", "FreeMonoBold.ttf"),
    ),
    "fonts-roboto-unhinted": (
        *("Roboto-Regular.ttf", "Roboto-Medium.ttf", "Roboto-Bold.ttf", "Roboto-Light.ttf"),
        "RobotoCondensed-Regular.ttf",
    ),
    "fonts-open-sans": (
        *("OpenSans-Regular.ttf", "OpenSans-Semibold.ttf", "OpenSans-Bold.ttf"),
        "OpenSans-Light.ttf",
    ),
    "fonts-lato": ("Lato-Regular.ttf", "Lato-Bold.ttf", "Lato-Medium.ttf", "Lato-Light.ttf"),
    "fonts-linuxlibertine": (
        *("LinLibertine_R.otf", "LinLibertine_RB.otf", "LinBiolinum_R.otf", "LinBiolinum_RB.otf"),
    ),
    "fonts-crosextra-carlito": ("Carlito-Bold.ttf",),
    "fonts-inconsolata": ("Inconsolata.otf",),
    "fonts-noto-core": ("NotoSans-Bold.ttf", "NotoSerif-Bold.ttf"),
    "fonts-adf-accanthis": ("AccanthisADFStd-Regular.otf", "AccanthisADFStd-Bold.otf"),
    "fonts-adf-baskervald": ("BaskervaldADFStd.otf", "BaskervaldADFStd-Bold.otf"),
    "fonts-adf-gillius": ("GilliusADF-Regular.otf", "GilliusADF-Bold.otf"),
    "fonts-adf-libris": ("LibrisADFStd-Regular.otf", "LibrisADFStd-Bold.otf"),
    "fonts-adf-switzera": ("SwitzeraADF-Light.otf", "SwitzeraADF-Cond.otf"),
    "fonts-adf-tribun": ("TribunADFStd-Regular.otf", "TribunADFStd-Cond.otf"),
    "fonts-adf-universalis": ("UniversalisADFStd-Regular.otf", "UniversalisADFStd-Bold.otf"),
    "fonts-adf-verana": ("Verana-Regular.otf", "VeranaSans-Regular.otf"),
    "fonts-anonymous-pro": ("Anonymous Pro.ttf",),
    "fonts-averia-sans-gwf": ("AveriaSansGWF-Regular.ttf",),
    "fonts-averia-serif-gwf": ("AveriaSerifGWF-Regular.ttf",),
    "fonts-b612": ("B612-Regular.otf", "B612-Bold.otf", "B612Mono-Regular.otf"),
    "fonts-cabin": ("Cabin-Regular.otf", "Cabin-SemiBold.otf"),
    "fonts-cardo": ("Cardo104s.ttf",),
    "fonts-century-catalogue": ("Century-Catalogue.ttf",),
    "fonts-clear-sans": ("ClearSans-Regular.ttf", "ClearSans-Medium.ttf", "ClearSans-Light.ttf"),
    "fonts-cmu": ("cmunrm.ttf", "cmunbx.ttf", "cmunss.ttf", "cmuntt.ttf"),
    "fonts-comfortaa": ("Comfortaa-Regular.ttf",),
    "fonts-comic-neue": ("ComicNeue-Regular.otf", "ComicNeue-Bold.otf"),
    "fonts-courier-prime": ("Courier Prime.otf", "Courier Prime Sans.otf"),
    "fonts-dosis": ("Dosis-Medium.otf",),
    "fonts-ebgaramond": ("EBGaramond12-Regular.otf", "EBGaramond12-Bold.otf"),
    "fonts-fanwood": ("FanwoodText.otf",),
    "fonts-firacode": ("FiraCode-Regular.ttf", "FiraCode-Bold.ttf"),
    "fonts-gfs-artemisia": ("GFSArtemisia.otf",),
    "fonts-gfs-didot": ("GFSDidot.otf", "GFSDidotBold.otf"),
    "fonts-gfs-neohellenic": ("GFSNeohellenic.otf", "GFSNeohellenicBold.otf"),
    "fonts-go": ("Go-Regular.ttf", "Go-Bold.ttf", "Go-Mono.ttf"),
    "fonts-goudybookletter": ("GoudyBookletter1911.otf",),
    "fonts-hack": ("Hack-Regular.ttf",),
    "fonts-inter": ("Inter-Regular.otf", "Inter-SemiBold.otf", "InterDisplay-Light.otf"),
    "fonts-jetbrains-mono": ("JetBrainsMono-Regular.ttf",),
    "fonts-junction": ("Junction.otf",),
    "fonts-karla": ("Karla-Regular.otf", "Karla-Bold.otf"),
    "fonts-league-spartan": ("LeagueSpartan-Regular.otf",),
    "fonts-manrope": ("Manrope-Regular.ttf", "Manrope-Bold.ttf"),
    "fonts-national-park": ("NationalPark-Regular.otf",),
    "fonts-oldstandard": ("OldStandard-Regular.ttf", "OldStandard-Bold.ttf"),
    "fonts-paratype": ("PTS55F.ttf", "PTS75F.ttf", "PTF55F.ttf", "PTF75F.ttf", "PTM55F.ttf"),
    "fonts-play": ("Play-Regular.ttf",),
    "fonts-prociono": ("Prociono.otf",),
    "fonts-quattrocento": ("Quattrocento-Regular.otf",),
    "fonts-quicksand": ("Quicksand-Medium.ttf",),
    "fonts-roboto-slab": ("RobotoSlab-Regular.otf", "RobotoSlab-Bold.otf"),
    "fonts-sil-andika": ("Andika-Regular.ttf", "Andika-Bold.ttf"),
    "fonts-sil-charis": ("CharisSIL-Regular.ttf", "CharisSIL-Bold.ttf"),
    "fonts-sil-gentiumplus": ("GentiumPlus-Regular.ttf", "GentiumBookPlus-Bold.ttf"),
    "fonts-sora": ("Sora-Regular.otf",),
    "fonts-stix": ("STIX-Regular.otf", "STIX-Bold.otf"),
    "fonts-tuffy": ("Tuffy.ttf", "Tuffy_Bold.ttf"),
    "fonts-urw-base35": (
        *("C059-Roman.otf", "C059-Bold.otf", "P052-Roman.otf", "P052-Bold.otf"),
        *("URWBookman-Light.otf", "URWBookman-Demi.otf", "URWGothic-Book.otf"),
        *("URWGothic-Demi.otf", "NimbusSansNarrow-Regular.otf"),
    ),
    "fonts-vollkorn": ("Vollkorn-Regular.ttf", "Vollkorn-Bold.ttf"),
    "fonts-yanone-kaffeesatz": ("YanoneKaffeesatz-Regular.otf",),
}
HELDOUT_OF: Mapping[str, tuple[str, ...]] = {
    "fonts-cantarell": ("Cantarell-Regular.otf", "Cantarell-Bold.otf"),
    "fonts-noto-core": ("NotoSans-Regular.ttf", "NotoSerif-Regular.ttf"),
    "fonts-crosextra-caladea": ("Caladea-Regular.ttf",),
    "fonts-crosextra-carlito": ("Carlito-Regular.ttf",),
}
PACKAGES = tuple(dict.fromkeys((*TRAIN_OF, *HELDOUT_OF)))
TRAIN = (BUILTIN, *chain.from_iterable(TRAIN_OF.values()))
HELDOUT = tuple(chain.from_iterable(HELDOUT_OF.values()))


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


if __name__ == "__main__":
    print(*PACKAGES)
