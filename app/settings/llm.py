"""Settings of the language-model stage: SGLang's engine arguments that matter, typed."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from app.settings.base import Device, Dtype, Scaling, Section
from app.settings.disaggregation import DisaggregationSettings
from app.settings.scheduling import (
    BucketSettings,
    LlmAutoscaling,
    QueueSettings,
    RouterSettings,
)
from app.settings.tiers import TierSettings

# Engine arguments that have a setting of their own: the escape hatch may not contradict it.
_OWN = frozenset(
    {
        "model_path",
        "served_model_name",
        "device",
        "dtype",
        "kv_cache_dtype",
        "tp_size",
        "attn_dp_size",
        "ep_size",
        "context_length",
        "chunked_prefill_size",
        "page_size",
        "max_running_requests",
        "max_queued_requests",
        "max_total_tokens",
        "mem_fraction_static",
        "swa_full_tokens_ratio",
        "speculative_algorithm",
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
        "enable_hierarchical_cache",
        "hicache_ratio",
        "hicache_size",
        "hicache_write_policy",
        "hicache_io_backend",
        "hicache_mem_layout",
        "hicache_storage_backend",
        "hicache_storage_prefetch_policy",
        "hicache_storage_backend_extra_config",
        "reasoning_parser",
        "tool_call_parser",
        "schedule_policy",
        "disaggregation_mode",
        "disaggregation_transfer_backend",
        "disaggregation_decode_allocation_policy",
        "disaggregation_decode_host_receive_threshold",
        "disaggregation_enable_kv_checksum",
        "disaggregation_ib_device",
        "disaggregation_bootstrap_port",
        "num_reserved_decode_tokens",
    }
)


class MtpSettings(Section):
    """Multi-token prediction: the checkpoint's own draft layers."""

    enabled: bool = Field(default=True, description="Draft with the checkpoint's MTP layers")
    steps: int = Field(
        default=3, ge=1, le=8, description="Tokens drafted per step, one MTP layer for each"
    )
    adaptive: bool = Field(
        default=True,
        description="Leave drafts unverified in batches where measured step times say that "
        "verifying them costs more than it gives; on a CPU only",
    )

    @property
    def draft_tokens(self) -> int:
        """Tokens that one step verifies: the drafts and the one before them."""
        return self.steps + 1 if self.enabled else 1


class LlmSettings(Scaling):
    """The language model: engine arguments and replicas."""

    autoscaling: LlmAutoscaling | None = Field(
        default=None, description="Scale between two counts; replaces 'replicas' when given"
    )
    device: Device
    dtype: Dtype = Field(description="Number type of weights and activations")
    kv_cache_dtype: Literal["auto", "fp8_e4m3", "fp8_e5m2", "bfloat16"] = Field(
        default="auto", description="Number type of the KV pools; auto = that of the model"
    )
    tensor_parallel: int = Field(default=1, ge=1, le=1024, description="Devices per layer")
    attention_data_parallel: int = Field(
        default=1, ge=1, le=1024, description="Groups that share the attention layers' requests"
    )
    expert_parallel: int = Field(
        default=1, ge=1, le=1024, description="Devices that the experts are spread over"
    )
    context_length: int | None = Field(
        default=None,
        ge=64,
        le=16_777_216,
        description="Tokens of prompt and answer together; null = the checkpoint's own",
    )
    chunked_prefill_size: int = Field(
        ge=16, le=1_048_576, description="Prompt tokens per prefill pass"
    )
    page_size: int = Field(default=1, ge=1, le=1024, description="Tokens per KV page")
    max_running_requests: int = Field(ge=1, le=65_536, description="Requests decoded at once")
    max_waiting_requests: int = Field(
        default=1024, ge=1, le=1_000_000, description="Requests that may wait in the engine"
    )
    kv_bytes: int | None = Field(
        default=None,
        ge=1 << 20,
        le=1 << 45,
        description="Bytes of both KV pools on a device; their sizes follow (llm/pools.py). null = "
        "max_total_tokens, or as many as mem_fraction allows",
    )
    typical_tokens: int = Field(
        default=4096,
        ge=16,
        le=16_777_216,
        description="Tokens of a usual conversation: the pools are sized so that both run full "
        "with conversations of this length",
    )
    swa_eviction_interval: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="Tokens after which a request gives outgrown SWA slots back; null = the "
        "window, 128 at most",
    )
    max_total_tokens: int | None = Field(
        default=None,
        ge=128,
        le=1_000_000_000,
        description="Tokens in the full pool, instead of kv_bytes",
    )
    mem_fraction: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Share of device memory for weights and KV pools; null = the engine's choice",
    )
    swa_full_tokens_ratio: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Tokens in the SWA pool per token in the full pool; null = from window, "
        "concurrency and typical_tokens",
    )
    window_counts_self: bool = Field(
        default=False,
        description="Whether the checkpoint's sliding window counts the query's own key (128 keys "
        "in all) or not (129); implementations of the family disagree, see llm/arguments.py",
    )
    decoder_threads: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="Threads of the CPU decoder; null = a thread for each core",
    )
    mtp: MtpSettings = Field(default=MtpSettings(), description="Multi-token prediction")
    queue: QueueSettings = Field(default=QueueSettings(), description="Order of waiting requests")
    router: RouterSettings = Field(default=RouterSettings(), description="How chats find a replica")
    buckets: BucketSettings = Field(default=BucketSettings(), description="Classes of length")
    disaggregation: DisaggregationSettings = Field(
        default=DisaggregationSettings(), description="Prefill and decode pools"
    )
    tiers: TierSettings = Field(default=TierSettings(), description="KV tiers below device memory")
    reasoning_parser: str | None = Field(
        default="mimo", description="SGLang's parser of thinking; null = none"
    )
    tool_call_parser: str | None = Field(
        default="mimo", description="SGLang's parser of tool calls; null = none"
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default={}, description="Default arguments of the chat template, such as enable_thinking"
    )
    warmup: bool = Field(
        default=True, description="Run requests before ready, so that the first one costs no more"
    )
    extra_engine_args: dict[str, Any] = Field(
        default={}, description="Further SGLang engine arguments by their own names"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        taken = sorted(_OWN & set(self.extra_engine_args))
        if taken:
            raise ValueError(
                f"extra_engine_args holds '{taken[0]}', which has a setting of its own in 'llm'"
            )
        if self.kv_bytes is None and self.max_total_tokens is None and self.device == "cpu":
            raise ValueError(
                "kv_bytes is null; on device cpu it must be a whole number, "
                "since there is no device memory to fill"
            )
        if self.kv_bytes is not None:
            for name in ("max_total_tokens", "swa_full_tokens_ratio"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is given with kv_bytes, from which it follows")
        if self.chunked_prefill_size % self.page_size:
            raise ValueError(
                f"chunked_prefill_size is {self.chunked_prefill_size}; "
                f"it must be a multiple of page_size ({self.page_size})"
            )
        if self.buckets.classes and self.router.policy != "kv_affinity":
            raise ValueError(
                f"router.policy is '{self.router.policy}'; "
                "length buckets need 'kv_affinity', which knows uncached work"
            )
        for each in self.buckets.classes:
            if each.chunked_prefill_size and each.chunked_prefill_size % self.page_size:
                raise ValueError(
                    f"buckets.classes holds a chunked_prefill_size of {each.chunked_prefill_size}; "
                    f"it must be a multiple of page_size ({self.page_size})"
                )
        if self.disaggregation.enabled:
            self._pairs()
        devices = self.tensor_parallel
        for name in ("attention_data_parallel", "expert_parallel"):
            if devices % getattr(self, name):
                raise ValueError(
                    f"{name} is {getattr(self, name)}; it must divide tensor_parallel ({devices})"
                )
        return self

    def _pairs(self) -> None:
        if self.device == "cpu":
            raise ValueError(
                "device is 'cpu'; disaggregation.enabled must be false there: SGLang's transfers "
                "move the memory of accelerators"
            )
        if self.page_size == 1:
            raise ValueError(
                "page_size is 1; with disaggregation it must be above 1, so that SGLang reserves "
                "and sends only the last window of the SWA layers"
            )
        if self.buckets.classes:
            raise ValueError("buckets.classes must be empty with disaggregation.enabled")

    @property
    def may_sleep(self) -> bool:
        """Whether there may be no replicas as long as nobody asks."""
        return self.autoscaling is not None and self.autoscaling.min_replicas == 0

    def deployments(self) -> dict[str, Self]:
        """Settings of each deployment by its name: one, one for each length bucket, or a pair."""
        if self.disaggregation.enabled:
            pools = {"LLM": self.disaggregation.prefill, "LLMDecode": self.disaggregation.decode}
            return {
                name: self.model_copy(
                    update={
                        "replicas": pool.replicas,
                        "autoscaling": pool.autoscaling,
                        "max_running_requests": pool.max_running_requests
                        or self.max_running_requests,
                        "mem_fraction": pool.mem_fraction or self.mem_fraction,
                    }
                )
                for name, pool in pools.items()
            }
        if not self.buckets.classes:
            return {"LLM": self}
        return {
            each.name: self.model_copy(
                update={
                    "replicas": each.replicas,
                    "autoscaling": each.autoscaling,
                    "chunked_prefill_size": each.chunked_prefill_size or self.chunked_prefill_size,
                }
            )
            for each in self.buckets.classes
        }
