"""The order of waiting requests in the engine; `policy.py` is pure."""
