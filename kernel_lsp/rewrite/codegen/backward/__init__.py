"""Gradients of generated kernels: derivatives of the IR, and the kernels of a backward pass."""
