"""How far a student's predictions are from its teacher's."""

import torch
import torch.nn.functional as F


# kernel-lsp: workload student=f32[4096,4096] teacher=f32[4096,4096]
def _distillation_eager(student, teacher):
    predicted = F.log_softmax(student / 2.0, dim=-1)
    wanted = torch.softmax(teacher / 2.0, dim=-1)
    return F.kl_div(predicted, wanted, reduction="batchmean")


def distillation(student, teacher):
    # Verified on cuda for student: float32 (4096, 4096); teacher: float32 (4096, 4096).
    # Anything that the reasoning below does not cover takes the original path.
    if not (
        student.is_cuda
        and student.dtype == torch.float32
        and student.shape == (4096, 4096)
        and teacher.is_cuda
        and teacher.dtype == torch.float32
        and teacher.shape == (4096, 4096)
        and not torch.is_autocast_enabled("cuda")
    ):
        return _distillation_eager(student, teacher)
    predicted = torch.log_softmax(student / 2.0, dim=-1)
    ratio = teacher / 2.0
    wanted = torch.softmax(ratio, dim=-1)
    logarithm = torch.log_softmax(ratio, dim=-1)
    # Below that the probability is 0, and what it is multiplied by must be finite.
    finite = torch.clamp_min(logarithm, min=-104.0)
    entropy = wanted * finite
    crossed = wanted * predicted
    divergence = entropy - crossed
    # Row by row, so that the softmax of a row need not be written.
    by_row = torch.sum(divergence, dim=-1)
    return torch.sum(by_row) / 4096
