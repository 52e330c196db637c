"""Configuration of the MiMo-V2.5 schema, loaded with ``trust_remote_code``.

A flat holder: every field of config.json becomes an attribute, the sub-configs stay
dictionaries. Rotary parameters differ between the two kinds of layer, so they are kept as
the plain fields ``rope_theta``, ``swa_rope_theta`` and ``rope_scaling`` and never
folded into the ``rope_parameters`` of newer transformers versions.
"""

from typing import Any

from transformers import PretrainedConfig


class MiMoV2Config(PretrainedConfig):
    model_type = "mimo_v2"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    def __init__(
        self,
        rope_theta: float = 10_000.0,
        rope_scaling: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rope_theta = rope_theta
        self.rope_scaling = rope_scaling
