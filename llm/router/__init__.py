"""Routing chats to the replica that holds their prefix; everything but `serve.py` is pure."""
