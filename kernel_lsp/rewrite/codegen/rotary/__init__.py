"""Rotary position embeddings in one kernel each way."""
