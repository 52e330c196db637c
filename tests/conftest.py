from tests.checkpoints import pocket_checkpoint

__all__ = ["pocket_checkpoint"]
