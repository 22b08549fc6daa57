"""A clamp and a ReLU that cannot change what a sigmoid gave."""

import torch


# kernel-lsp: workload logits=f32[4096,4096]
def _gates_eager(logits):
    opened = torch.sigmoid(logits)
    return torch.relu(torch.clamp(opened, 0.0, 1.0))


def gates(logits):
    # Verified on cuda for logits: float32 (4096, 4096).
    # Anything that the reasoning below does not cover takes the original path.
    if not (
        logits.is_cuda
        and logits.dtype == torch.float32
        and logits.shape[1:] == (4096,)
        and not torch.is_autocast_enabled("cuda")
        and not (torch.is_grad_enabled() and (logits.requires_grad))
    ):
        return _gates_eager(logits)
    opened = torch.sigmoid(logits)
    return opened
