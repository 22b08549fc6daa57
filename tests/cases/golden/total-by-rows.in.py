"""How far a student's predictions are from its teacher's."""

import torch
import torch.nn.functional as F


# kernel-lsp: workload student=f32[4096,4096] teacher=f32[4096,4096]
def distillation(student, teacher):
    predicted = F.log_softmax(student / 2.0, dim=-1)
    wanted = torch.softmax(teacher / 2.0, dim=-1)
    return F.kl_div(predicted, wanted, reduction="batchmean")
