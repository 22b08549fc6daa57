"""Batch norm in train mode, forward and backward."""
