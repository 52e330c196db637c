"""The node's KV store (L3): pages of the prefix cache that outlive an engine's memory."""
