"""Write a trained state as a checkpoint in the MiMo-V2.5 schema.

python -m tools.pocket.export --state ~/.cache/omniserve-pocket/joint.pt --out models/pocket

The state is that of ``tools.pocket.train.joint`` or ``...mtp``. One of ``...trunk`` has no towers;
with ``--base`` they are taken from another checkpoint.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tools.pocket.init import write_text_files
from tools.pocket.layout import TensorPlan, audio_tokenizer_plan, main_plan, mtp_plan
from tools.pocket.spec import PocketSpec
from tools.pocket.train.audio_model import AudioTrainer
from tools.pocket.train.example import ChatEncoder
from tools.pocket.train.media import AudioRows
from tools.pocket.train.towers import audio_tokenizer_tensors, vision_tensors
from tools.pocket.train.vision_model import VisionTrainer
from tools.pocket.trunk.model import Trunk
from tools.pocket.trunk.tensors import Tensors, mtp_tensors, trunk_tensors
from tools.pocket.weights import save_checkpoint


def audio_encoder_tensors(audio: AudioRows) -> Tensors:
    """``audio_encoder.*`` and ``speech_embeddings.*``; the padding row is zero."""
    audio.embeddings.clear_zero_rows()
    parts = {"audio_encoder": audio.encoder, "speech_embeddings": audio.embeddings}
    return {
        f"{prefix}.{name}": tensor
        for prefix, module in parts.items()
        for name, tensor in module.state_dict().items()
    }


def planned(tensors: Mapping[str, torch.Tensor], plans: Iterable[TensorPlan]) -> Tensors:
    """The tensors in the order, types and shapes of a plan.

    Raises ``ValueError`` where the two differ in names or shapes or a value is not finite.
    """
    found: Tensors = {}
    for plan in plans:
        tensor = tensors.get(plan.name)
        if tensor is None or tuple(tensor.shape) != plan.shape:
            shape = None if tensor is None else list(tensor.shape)
            raise ValueError(f"{plan.name}: expected shape {list(plan.shape)}, got {shape}")
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{plan.name} has values that are not finite")
        found[plan.name] = tensor.detach().to(getattr(torch, plan.dtype)).contiguous()
    if extra := set(tensors) - set(found):
        raise ValueError(f"tensors without a place in the checkpoint: {sorted(extra)[:5]}")
    return found


def state_tensors(
    state: Mapping[str, Any], spec: PocketSpec, base: Path | None = None
) -> tuple[Tensors, Tensors, Tensors]:
    """Tensors of the main, MTP and audio tokenizer files of a training state."""
    trunk = Trunk(spec.text)
    trunk.load_state_dict(state["trunk"])
    main, mtp = trunk_tensors(trunk), mtp_tensors(trunk)
    if "vision" in state:
        vision, audio, rows = VisionTrainer(spec), AudioTrainer(spec), AudioRows(spec)
        vision.load_state_dict(state["vision"])
        audio.load_state_dict(state["audio_tokenizer"])
        rows.load_state_dict(state["audio"])
        main |= vision_tensors(vision.tower) | audio_encoder_tensors(rows)
        tokenizer = audio_tokenizer_tensors(audio)
    elif base is not None:
        stored = load_file(base / "model.safetensors")
        main |= {k: t for k, t in stored.items() if not k.startswith(("model.", "lm_head."))}
        tokenizer = load_file(base / "audio_tokenizer" / "model.safetensors")
    else:
        raise ValueError("the state has no towers and no base checkpoint was given")
    return (
        planned(main, main_plan(spec)),
        planned(mtp, mtp_plan(spec)),
        planned(tokenizer, audio_tokenizer_plan(spec.audio_tokenizer)),
    )


def export(state: Mapping[str, Any], spec: PocketSpec, out: Path, base: Path | None = None) -> None:
    """Write the complete checkpoint directory, text files included.

    Raises ``ValueError`` when the tokenizer that they are written with is not the trained one.
    """
    main, mtp, tokenizer = state_tensors(state, spec, base)
    write_text_files(spec, out)
    if ChatEncoder(out).fingerprint != state["tokenizer"]:
        raise ValueError(f"the state was trained with another tokenizer than {out} now has")
    save_checkpoint(out, main, mtp, tokenizer)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a trained state as a checkpoint.")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--base", type=Path, help="checkpoint whose towers complete a text state")
    options = parser.parse_args()
    state = torch.load(options.state, map_location="cpu", weights_only=True)
    export(state, PocketSpec(), options.out, options.base)
    size = sum(path.stat().st_size for path in options.out.rglob("*.safetensors"))
    print(f"wrote {options.out}: {size / 1e6:.1f} MB of weights")


if __name__ == "__main__":
    main()
