"""Random weights for a tensor plan, and the safetensors files of a checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file

from tools.pocket.layout import TensorPlan, audio_tokenizer_plan, main_plan, mtp_plan
from tools.pocket.spec import PocketSpec


def random_tensor(plan: TensorPlan, seed: int) -> torch.Tensor:
    """Values of one tensor. They depend on ``seed`` and the name only, not on the other tensors."""
    # embed_avg is the running mean behind embed: in a converged codebook both are equal.
    name = plan.name.replace(".embed_avg", ".embed")
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    values = torch.randn(plan.shape, generator=generator) * plan.std + plan.mean
    if plan.zero_row is not None:
        values[plan.zero_row] = 0.0
    return values.to(getattr(torch, plan.dtype))


def random_tensors(plans: Iterable[TensorPlan], seed: int) -> dict[str, torch.Tensor]:
    return {plan.name: random_tensor(plan, seed) for plan in plans}


def write_index(out: Path, files: dict[str, dict[str, torch.Tensor]]) -> None:
    """Write ``model.safetensors.index.json`` over ``files`` (file name to its tensors)."""
    total = sum(t.nbytes for tensors in files.values() for t in tensors.values())
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    path = out / "model.safetensors.index.json"
    path.write_text(json.dumps(index, indent=2) + "\n")


def save_checkpoint(
    out: Path,
    main: dict[str, torch.Tensor],
    mtp: dict[str, torch.Tensor],
    audio_tokenizer: dict[str, torch.Tensor],
) -> None:
    """Write the three safetensors files and the index below ``out``."""
    (out / "audio_tokenizer").mkdir(parents=True, exist_ok=True)
    files = {"model.safetensors": main, "model_mtp.safetensors": mtp}
    write_index(out, files)
    files["audio_tokenizer/model.safetensors"] = audio_tokenizer
    for file, tensors in files.items():
        save_file(tensors, out / file, {"format": "pt"})
        (out / file).chmod(0o644)  # safetensors makes files private to the writer


def write_random_weights(spec: PocketSpec, seed: int, out: Path) -> None:
    """Write a complete set of random weights; the same seed gives the same bytes."""
    save_checkpoint(
        out,
        main=random_tensors(main_plan(spec), seed),
        mtp=random_tensors(mtp_plan(spec), seed),
        audio_tokenizer=random_tensors(audio_tokenizer_plan(spec.audio_tokenizer), seed),
    )
