from tests.llm.engines import engines, oracle

__all__ = ["engines", "oracle"]
