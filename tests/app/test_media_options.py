"""Options of media items: what reaches the stages, what is part of an item's identity."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.chat import parse_chat
from app.errors import ApiError
from app.frame_size import size_rule
from app.identity import checkpoint_identity
from app.item_options import ItemOptions, OptionRules
from app.settings import ROOT, SettingsError, check_model
from encoders.vision.size import smart_resize
from tests.app.fakes import audio_part, chat, image, settings, video_part

MODEL = {"processor_config": {"fps": 1.0, "max_frames": 64, "min_frames": None}}


def options(
    part: dict[str, object], model: dict[str, object] = MODEL, **video: object
) -> ItemOptions:
    rules = OptionRules.of(settings(video=video), model)
    return rules.options(parse_chat(chat(part), 1).items[0])


def test_sampling_comes_from_checkpoint_settings_and_request() -> None:
    assert options(video_part()).decode == {"fps": 1.0, "max_frames": 64}
    assert options(video_part(), fps=2.0).decode == {"fps": 2.0, "max_frames": 64}
    assert options(video_part(fps=4, min_frames=2), fps=2.0).decode == {
        "fps": 4.0,
        "max_frames": 64,
        "min_frames": 2,
    }
    assert options(video_part(max_frames=128)).decode["max_frames"] == 128
    assert options(video_part(), {}).decode == {"max_frames": 3600}
    assert options(video_part(), request_max_frames=32).decode["max_frames"] == 32


def test_a_count_of_frames_replaces_the_default_rate() -> None:
    assert options(video_part(num_frames=6)).decode == {"num_frames": 6, "max_frames": 64}


def test_times_and_key_frames() -> None:
    found = options(video_part(times=[0, 1.5], key_frames=True), fps=2.0).decode
    assert found == {"times": [0.0, 1.5], "key_frames": True, "max_frames": 64}
    assert options(video_part(key_frames=True)).decode["fps"] == 1.0
    plain, keyed = options(video_part()), options(video_part(key_frames=True))
    assert plain.fields() != keyed.fields()
    for wishes, words in (
        ({"times": [0], "fps": 1}, "fps and times are given"),
        ({"times": [0], "num_frames": 2}, "num_frames and times are given"),
        ({"times": [0] * 65}, "times has more than 64 entries"),
    ):
        with pytest.raises(ApiError, match=words):
            options(video_part(**wishes), request_max_frames=64)


def test_only_low_detail_changes_an_image() -> None:
    plain = options(image()).fields()
    assert options(image(detail="high")).fields() == options(image(detail="auto")).fields() == plain
    assert options(image(detail="low")).encode == {**plain["encode"], "detail": "low"}


def test_settings_that_change_rows_are_part_of_the_identity() -> None:
    rules = OptionRules.of(settings(images={"resize_max_pixels": 65536}), MODEL)
    assert rules.options(parse_chat(chat(image()), 1).items[0]).encode == {"max_pixels": 65536}
    wide, narrow = options(video_part()), options(video_part(), total_max_pixels=65536)
    assert wide.fields() != narrow.fields()
    assert options(audio_part()).fields() == {"decode": {}, "encode": {}}


@pytest.mark.parametrize(
    ("section", "name", "key"),
    [
        ("images", "resize_max_pixels", "image_max_pixels"),
        ("video", "max_pixels", "video_max_pixels"),
    ],
)
def test_settings_may_not_widen_the_checkpoints_limits(section: str, name: str, key: str) -> None:
    model = {"processor_config": {key: 100_000}}
    check_model(settings(**{section: {name: 100_000}}), model)
    with pytest.raises(SettingsError, match=rf"{section}\.{name} is 100001; .* to 100000"):
        check_model(settings(**{section: {name: 100_001}}), model)


def test_frames_are_shrunk_to_what_the_tower_wants_and_never_enlarged() -> None:
    rule = size_rule({"processor_config": {"video_total_max_pixels": 268_435_456}}, {})
    assert rule(2, 2160, 3840) == smart_resize(2160, 3840, 32, 4096, 4096 * 1024)
    assert rule(2, 1080, 1920) == (1080, 1920)  # the tower enlarges them to 1088 x 1920
    assert rule(3600, 1080, 1920) == (288, 512)  # mimo-v2.md section 5: one hour at 1 fps
    assert rule(8, 48, 64) == (48, 64)
    assert rule(8, 64, 64) == (64, 64)
    narrow = size_rule({}, {"max_pixels": 65536})
    height, width = narrow(2, 1080, 1920)
    assert height * width <= 65536
    again = pickle.loads(pickle.dumps(narrow))
    assert again(2, 1080, 1920) == (height, width)
    # The tower finds the frames as it wants them.
    assert smart_resize(height, width, 32, 4096, 65536) == (height, width)


def test_the_size_rule_loads_nothing_heavy() -> None:
    code = (
        "import sys, app.frame_size\n"
        "heavy = {'torch', 'av', 'ray', 'pydantic', 'httpx'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "a"
    directory.mkdir()
    shutil.copy(ROOT / "models/pocket/config.json", directory)
    (directory / "model.safetensors").write_bytes(bytes(300_000))
    return directory


def test_identity_follows_the_files_and_not_their_place(checkpoint: Path, tmp_path: Path) -> None:
    first = checkpoint_identity(checkpoint)
    assert len(first) == 64
    copy = tmp_path / "b"
    shutil.copytree(checkpoint, copy)
    assert checkpoint_identity(copy) == first
    (copy / "notes.txt").write_text("no part of the model")
    assert checkpoint_identity(copy) == first


@pytest.mark.parametrize("place", [10, 150_000, 299_999])
def test_other_weights_are_another_identity(checkpoint: Path, place: int) -> None:
    first = checkpoint_identity(checkpoint)
    weights = bytearray(300_000)
    weights[place] = 1
    (checkpoint / "model.safetensors").write_bytes(weights)
    assert checkpoint_identity(checkpoint) != first


def test_another_configuration_is_another_identity(checkpoint: Path) -> None:
    first = checkpoint_identity(checkpoint)
    (checkpoint / "config.json").write_text("{}")
    assert checkpoint_identity(checkpoint) != first
