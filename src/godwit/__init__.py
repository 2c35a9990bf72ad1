"""Godwit: LLM serving whose streams never stop."""

__version__ = "0.1.0"
