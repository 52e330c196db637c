"""Prefill and decode in pools of their own, over SGLang's KV transfer."""
