"""Training programs of the pocket model's towers: ``python -m tools.pocket.train.audio`` and
``...vision``. Both run on one core, resume from a state file and print progress with held-out
accuracy. The trunk has its own package."""
