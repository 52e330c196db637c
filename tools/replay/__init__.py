"""Replay request traces through the production routing and scheduling code on a virtual clock."""
