"""Operations that fake tensors refuse are described as devices compute them."""

import pytest
import torch
import torch.nn.functional as F
from rewrite_helpers import instance, module, rewrite
from torch._subclasses.fake_tensor import FakeTensorMode

from kernel_lsp.rewrite.capture.fakes import describe_operations

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not hasattr(torch.ops.aten, "_grouped_mm"), reason="older torch"),
]
X = torch.ones(6, 8)
LAST = [4, 12, 16]
"""Where the groups end."""


@pytest.mark.parametrize(
    "a, b, ends",
    [((16, 8), (3, 8, 4), LAST), ((8, 16), (16, 4), LAST), ((3, 4, 8), (8, 16), LAST),
     ((3, 4, 8), (3, 8, 4), None)],
)  # fmt: skip
def test_a_grouped_product_has_the_size_and_kind_that_it_has(a, b, ends) -> None:
    def product() -> torch.Tensor:
        offs = torch.empty(len(ends), dtype=torch.int32) if ends else None
        if offs is not None and not isinstance(offs, torch._subclasses.FakeTensor):
            offs = torch.tensor(ends, dtype=torch.int32)
        return torch.ops.aten._grouped_mm(torch.ones(a), torch.ones(b), offs)

    describe_operations()
    real = product()
    with FakeTensorMode():
        fake = product()
    assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
    assert fake.stride() == real.stride()


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="older torch")
def test_a_mixture_of_experts_in_float32_is_a_graph() -> None:
    init = "self.w, self.ends = nn.Parameter(torch.ones(3, 8, 4)), torch.tensor([1, 4, 6]).int()"
    body = "return F.relu(torch.sigmoid(F.grouped_mm(x, self.w, offs=self.ends)))"
    source = module(body, init)
    text = rewrite(source, "value-range-collapse").program
    before, after = (instance(one, None, torch.float32) for one in (source, text))
    assert "return torch.sigmoid(torch.ops.aten._grouped_mm" in text
    torch.testing.assert_close(after(X), before(X))
