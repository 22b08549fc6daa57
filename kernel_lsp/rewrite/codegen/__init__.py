"""Triton source from regions of the graph: a folder for each family of kernels.

`core/ir.py` says what a kernel computes. `core`, `pointwise`, `reduction`, `regions` and `backward`
stand on each other in this order, families on them: attention, convolution, extremes, lookups,
loss, matmul, moving, normalization, pooling, quantized, recurrence, resampling, rotary, scan, and
groups (pointwise work and reductions that share a kernel). In a family `fuse.py` finds sites and
applies them, `source.py` writes text."""
