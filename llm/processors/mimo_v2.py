"""Hands finished embedding rows to SGLang: the prompt is expanded already, rows are attached."""

from __future__ import annotations

from typing import Any, ClassVar

from sglang.srt.managers.schedule_batch import (
    Modality,
    MultimodalDataItem,
    MultimodalInputFormat,
    MultimodalProcessorOutput,
)
from sglang.srt.multimodal.processors.base_processor import BaseMultimodalProcessor

from llm.handover import carried
from llm.prompt import MediaSpan

# SGLang matches processors to models by class name alone; the real class would import the
# whole model into the API process.
_Target = type("MiMoV2ForCausalLM", (), {})


class EmbeddingProcessor(BaseMultimodalProcessor):
    """Takes ``MediaSpan`` objects in ``image_data`` (whatever their modality) and token ids."""

    models: ClassVar[list[type]] = [_Target]
    prefer_tokenized_input = True
    preserve_processor_input_ids = True
    auto_mm_io_worker_num = 1
    auto_mm_processor_worker_num = 1

    async def process_mm_data_async(
        self,
        image_data: list[MediaSpan],
        audio_data: Any = None,
        input_text: list[int] | str = "",
        request_obj: Any = None,
        **kwargs: Any,
    ) -> MultimodalProcessorOutput:
        """Raises ValueError (HTTP 400) for anything but spans beside token ids."""
        if isinstance(input_text, str) or not all(isinstance(s, MediaSpan) for s in image_data):
            raise ValueError("the engine takes token ids with embedding rows, no raw media")
        return MultimodalProcessorOutput(
            mm_items=[_item(span) for span in image_data],
            input_ids=input_text,
            im_token_id=self.hf_config.image_token_id,
            video_token_id=self.hf_config.video_token_id,
            audio_token_id=self.hf_config.audio_token_id,
        )


def _item(span: MediaSpan) -> MultimodalDataItem:
    item = MultimodalDataItem(
        modality=Modality[span.modality.upper()],
        offsets=[(start, start + count - 1) for start, count in span.offsets],
        format=MultimodalInputFormat.PRECOMPUTED_EMBEDDING,
        precomputed_embeddings=carried(span.rows),
    )
    # The whole digest goes into the prefix tree's key (four 62-bit sentinels per span).
    item.set_identity(span.identity)
    return item
