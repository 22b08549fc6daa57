"""Per-channel gains written as a product with a diagonal matrix."""

import torch


# kernel-lsp: workload gain=f32[2048] signal=f32[2048,1536]
def _amplify_eager(gain, signal):
    return torch.diag(gain) @ signal


def amplify(gain, signal):
    # Verified on cuda for gain: float32 (2048,); signal: float32 (2048, 1536).
    # Anything that the reasoning below does not cover takes the original path.
    if not (
        gain.is_cuda
        and gain.dtype == torch.float32
        and gain.ndim == 1
        and signal.is_cuda
        and signal.dtype == torch.float32
        and signal.shape == (gain.shape[0], 1536)
        and not torch.is_autocast_enabled("cuda")
    ):
        return _amplify_eager(gain, signal)
    # diag(a) @ B multiplies row i of B by a[i].
    return gain.unsqueeze(1) * signal
