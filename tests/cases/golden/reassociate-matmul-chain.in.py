"""A product of two matrices with a vector."""

import torch


# kernel-lsp: workload left=f32[2048,2048] right=f32[2048,2048] vector=f32[2048,1]
def apply_both(left, right, vector):
    return left @ right @ vector
