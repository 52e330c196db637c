"""SGLang's engine arguments of a prefill or a decode engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def role_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for the `role` in the settings of an engine; none without a role.

    With `allocation` "prefill_complete" a request holds no KV on the decode engine while it waits
    and computes: its KV stays with the prefill engine, in whatever tier that has, until decode
    admits it. SWA layers send and reserve their last window only, which SGLang does by itself for
    pages above one token. The decode engine keeps no prefix cache of its own (SGLang refuses it
    for this model family); prefixes are found where they are computed.
    """
    role = settings.get("role")
    if role is None:
        return {}
    given = settings["disaggregation"]
    arguments: dict[str, Any] = {
        "disaggregation_mode": role,
        "disaggregation_transfer_backend": given["backend"],
        "disaggregation_decode_allocation_policy": given["allocation"],
        "disaggregation_enable_kv_checksum": given["checksum"],
    }
    if given["ib_device"] is not None:
        arguments["disaggregation_ib_device"] = given["ib_device"]
    if role == "prefill":
        arguments["disaggregation_bootstrap_port"] = settings["bootstrap_port"]
    else:
        arguments["num_reserved_decode_tokens"] = given["reserved_decode_tokens"]
    return arguments
