"""OpenAI chat semantics by SGLang's own serving class, fed with media slots."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
from sglang.srt.managers.io_struct import GenerateReqInput

from llm.prompt import ChatPrompt


class OmniServingChat(OpenAIServingChat):
    """SGLang's chat handler with our way from rendered template to token ids.

    A request works on a shallow copy that knows its prompt (``for_prompt``), because SGLang
    renders the template deep inside and passes nothing of ours there.
    """

    prompt: ChatPrompt | None = None
    prompt_tokens: Callable[[int], None] | None = None

    def for_prompt(
        self, prompt: ChatPrompt, prompt_tokens: Callable[[int], None] | None = None
    ) -> OmniServingChat:
        serving = copy.copy(self)
        serving.prompt = prompt
        serving.prompt_tokens = prompt_tokens
        return serving

    def _render_and_encode_chat_template(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
        template_kwargs: dict[str, Any],
        encode_kwargs: dict[str, Any],
        use_cache: bool,
        add_generation_prompt: bool = True,
    ) -> tuple[list[int], str | None]:
        rendered = self.tokenizer_manager.tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            return_dict=False,
            **template_kwargs,
        )
        # The text only has to be non-empty: SGLang uses the ids.
        return self._prompt.encode(rendered), rendered

    def _append_assistant_prefix_to_prompt_ids(
        self, prompt_ids: list[int], assistant_prefix: str
    ) -> list[int]:
        return prompt_ids + self._prompt.encode_more(assistant_prefix)

    def _can_reuse_text_only_prompt_ids(self, processed_messages: Any, is_multimodal: bool) -> bool:
        return True

    def _convert_to_internal_request(
        self, request: ChatCompletionRequest, raw_request: Any = None
    ) -> tuple[GenerateReqInput, ChatCompletionRequest]:
        adapted, request = super()._convert_to_internal_request(request, raw_request)
        if self.prompt_tokens is not None:
            self.prompt_tokens(len(adapted.input_ids))
        spans = list(self._prompt.spans)
        if spans:
            # With several choices SGLang takes the outer list for a batch of prompts.
            adapted.image_data = spans if request.n == 1 else [spans]
        return adapted, request

    @property
    def _prompt(self) -> ChatPrompt:
        assert self.prompt is not None, "use for_prompt"
        return self.prompt
