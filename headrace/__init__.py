"""Headrace: an LLM server that starts from a bucket."""

__version__ = "0.1.0"
