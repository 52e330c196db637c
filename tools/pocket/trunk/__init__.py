"""The MiMo-V2 decoder for training: batched, differentiable, own code (parity: tests/tools)."""
