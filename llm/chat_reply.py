"""One chat request through SGLang's handler, as reply head and body pieces."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from fastapi.responses import Response, StreamingResponse
from pydantic import ValidationError
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

from encoders.embedding import Embedding
from llm.chat import OmniServingChat
from llm.prompt import ChatPrompt, Vocabulary
from llm.queue.tiers import tier_of
from llm.reply import ReplyHead
from llm.rows import LeasedRows

if TYPE_CHECKING:
    import torch

JSON = "application/json"

# Fields of SGLang's request class that steer the engine's insides or replace the prompt.
INTERNAL_FIELDS = frozenset(
    {
        *("input_ids", "rid", "session_id", "session_params", "extra_key", "lora_path"),
        *("bootstrap_host", "bootstrap_port", "bootstrap_room", "disagg_prefill_dp_rank"),
        *("routed_dp_rank", "data_parallel_rank", "custom_logit_processor", "custom_params"),
        *("return_hidden_states", "return_routed_experts", "routed_experts_start_len"),
        *("images_config", "video_config", "mm_processor_kwargs", "max_dynamic_patch"),
        *("min_dynamic_patch", "use_audio_in_video"),
    }
)


async def reply(
    serving: OmniServingChat,
    vocabulary: Vocabulary,
    body: dict[str, Any],
    embeddings: Sequence[Embedding],
    rows: Sequence[torch.Tensor | LeasedRows],
    rid: str,
    prompt_tokens: Callable[[int], None] | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> AsyncIterator[ReplyHead | bytes]:
    """Validate, generate, and yield a ReplyHead followed by the HTTP body.

    A request that is not valid yields OpenAI's error object with status 400 and names the
    offending fields, not their values. ``prompt_tokens`` is told how many tokens the prompt has;
    ``more``: internal fields of the request.
    """
    refused = _refused_field(body)
    if refused:
        yield ReplyHead(400, JSON)
        yield _error(f"{refused} is not accepted by this server", 400)
        return
    try:
        tier = tier_of(body)
    except ValueError as error:
        yield ReplyHead(400, JSON)
        yield _error(str(error), 400)
        return
    prompt = ChatPrompt(vocabulary, embeddings, rows)
    try:
        guarded = prompt.guard(body) | {"rid": rid, "priority": tier, **more}
        request = ChatCompletionRequest.model_validate(guarded)
    except ValidationError as error:
        yield ReplyHead(400, JSON)
        yield _error(_summary(error), 400)
        return
    except ValueError as error:
        # Media and layout disagree: our own fault, and this request's alone.
        yield ReplyHead(500, JSON)
        yield _error(str(error), 500)
        return
    response = await serving.for_prompt(prompt, prompt_tokens).handle_request(request, None)
    if isinstance(response, StreamingResponse):
        yield ReplyHead(response.status_code, "text/event-stream")
        async with aclosing(cast("AsyncGenerator[str | bytes]", response.body_iterator)) as chunks:
            async for chunk in chunks:
                yield chunk.encode() if isinstance(chunk, str) else bytes(chunk)
    elif isinstance(response, Response):
        yield ReplyHead(response.status_code, JSON)
        yield _nested(bytes(response.body), response.status_code)
    else:
        yield ReplyHead(200, JSON)
        yield response.model_dump_json().encode()


def _refused_field(body: dict[str, Any]) -> str | None:
    """A field that the request may not hold. A template of the client's own would undo the
    binding of media by structure."""
    for name in sorted(INTERNAL_FIELDS & body.keys()):
        if body[name] is not None:
            return name
    arguments = body.get("chat_template_kwargs")
    if isinstance(arguments, dict) and "chat_template" in arguments:
        return "chat_template_kwargs.chat_template"
    return None


def _summary(error: ValidationError, most: int = 5) -> str:
    """Field paths and reasons of a validation error, without the values."""
    seen = {
        ".".join(str(part) for part in e["loc"])[:80] + ": " + str(e["msg"])[:160]
        for e in error.errors(include_input=False, include_url=False, include_context=False)
    }
    lines = sorted(seen, key=lambda line: (len(line), line))[:most]
    return "the request is not valid: " + "; ".join(lines)


def _nested(document: bytes, status: int) -> bytes:
    """SGLang's flat error document as OpenAI's ``{"error": {...}}``."""
    flat = json.loads(document)
    if status < 400 or "error" in flat:
        return document
    return _error(str(flat.get("message", "")), status)


def _error(message: str, status: int) -> bytes:
    kind = "invalid_request_error" if status < 500 else "internal_error"
    detail = {"message": message[:1500], "type": kind, "param": None, "code": None}
    return json.dumps({"error": detail}).encode()
