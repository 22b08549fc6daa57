"""A causal mask that is made anew in each call."""

import torch
import functools


@functools.cache  # one tensor per device, kept until the process ends
@torch.inference_mode(False)  # an inference tensor would be useless in training later
def _mask_once(device):
    ones = torch.ones((512, 512), device=device)
    tril = torch.tril(ones)
    return tril == 0


# kernel-lsp: workload scores=f32[16,512,512]
def _causal_eager(scores):
    mask = torch.ones(512, 512, device=scores.device).tril() == 0
    return scores.masked_fill(mask, float("-inf"))


def causal(scores):
    # Verified on cuda for scores: float32 (16, 512, 512).
    # Anything that the reasoning below does not cover takes the original path.
    if not (
        scores.is_cuda
        and scores.dtype == torch.float32
        and scores.shape[1:] == (512, 512)
        and not torch.is_autocast_enabled("cuda")
        and not torch.compiler.is_compiling()
    ):
        return _causal_eager(scores)
    # Depends on nothing but the device, so it is built once; state_dict does not see it.
    mask = _mask_once(scores.device)
    return scores.masked_fill(mask, float("-inf"))
