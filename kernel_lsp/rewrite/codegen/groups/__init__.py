"""Pointwise work and reductions in groups that share one kernel: softmax, norms, sums, losses."""
