"""Triton source from regions of the graph. Start at `fuse.py`; `ir.py` is what a kernel
computes."""
