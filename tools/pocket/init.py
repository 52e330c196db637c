"""Write a checkpoint in the MiMo-V2.5 schema with random weights.

python -m tools.pocket.init --seed 0 --out models/pocket
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from tools.pocket import configs
from tools.pocket.corpus import documents
from tools.pocket.spec import PocketSpec
from tools.pocket.tokenizer import train_tokenizer, write_tokenizer

ASSETS = Path(__file__).parent / "assets"
TOKENIZER_DOCUMENTS = 6000


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_text_files(spec: PocketSpec, out: Path) -> None:
    """Write everything but the weights. The result depends on ``spec`` only, not on a seed."""
    (out / "audio_tokenizer").mkdir(parents=True, exist_ok=True)
    _write_json(out / "config.json", configs.model_config(spec))
    _write_json(out / "audio_tokenizer" / "config.json", configs.audio_tokenizer_config(spec))
    _write_json(out / "preprocessor_config.json", configs.preprocessor_config(spec))
    _write_json(out / "generation_config.json", configs.generation_config(spec))
    shutil.copyfile(ASSETS / "configuration_mimo_v2.py", out / "configuration_mimo_v2.py")
    tokenizer = train_tokenizer(documents(TOKENIZER_DOCUMENTS), spec.text.vocab_size)
    template = (ASSETS / "chat_template.jinja").read_text()
    write_tokenizer(tokenizer, template, spec.text.max_position_embeddings, out)


def write_checkpoint(spec: PocketSpec, seed: int, out: Path) -> None:
    """Write a complete checkpoint directory; the same arguments give the same bytes."""
    from tools.pocket.weights import write_random_weights

    write_text_files(spec, out)
    write_random_weights(spec, seed, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("models/pocket"))
    arguments = parser.parse_args()
    write_checkpoint(PocketSpec(), arguments.seed, arguments.out)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
