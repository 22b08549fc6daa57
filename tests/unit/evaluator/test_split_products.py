"""What a float32 product on tensor cores may not know, and what it is no excuse for."""

import math

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator.judging import numerics  # noqa: E402
from kernel_lsp.evaluator.judging.inputs import EXTREME, INFINITE  # noqa: E402
from kernel_lsp.evaluator.judging.split_products import SplitProducts, split_value  # noqa: E402

pytestmark = pytest.mark.torch
LARGEST = torch.finfo(torch.float32).max


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT + mask, dim=-1) @ v


def attended(k_value: float, mask_value: float = 0.0) -> torch.Tensor:
    """Two queries that look at three keys; one number of the second key is ``k_value``."""
    q, v = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.eye(3)
    k = torch.tensor([[1.0, 2.0], [k_value, 0.0], [0.5, 1.0]])
    mask = torch.zeros(2, 3)
    mask[0, 2] = mask_value
    return attend(q, k, v, mask)


def test_a_score_of_minus_infinity_is_uncertain_where_it_comes_from_a_product() -> None:
    assert torch.isfinite(attended(-math.inf)).all()  # the key has no weight
    with SplitProducts():
        assert torch.isnan(attended(-math.inf)).all()  # both queries see it


def test_a_mask_of_minus_infinity_is_as_certain_as_ever() -> None:
    with SplitProducts():
        assert torch.isfinite(attended(1.0, mask_value=-math.inf)).all()


def test_values_that_tf32_rounds_to_infinity_are_at_the_edge_and_others_are_not() -> None:
    values = torch.tensor([LARGEST, -LARGEST, LARGEST / 2, math.inf, math.nan, 0.0, 1e-45])
    split = split_value(values)
    assert torch.isnan(split).tolist() == [True, True, False, True, True, False, False]
    narrow = values.to(torch.bfloat16)
    assert split_value(narrow) is narrow  # tensor cores take these whole
    plain = torch.ones(3)
    assert split_value(plain) is plain


def test_what_is_added_to_a_product_is_not_split() -> None:
    bias = torch.tensor([math.inf, 1.0])
    with SplitProducts():
        found = torch.addmm(bias, torch.ones(1, 2), torch.ones(2, 2))
        linear = torch.nn.functional.linear(torch.ones(1, 2), torch.ones(2, 2), bias)
    assert found.tolist() == linear.tolist() == [[math.inf, 3.0]]


@pytest.mark.parametrize("family", [INFINITE, EXTREME])
def test_nan_is_excused_where_it_is_uncertain_and_nowhere_else(family: str) -> None:
    reference = torch.tensor([0.25, 0.5, 0.75])
    uncertain = torch.tensor([True, False, False])

    def passes(candidate: torch.Tensor) -> bool:
        found = numerics.compare(
            candidate, reference, reference.double(), edge=family, uncertain=uncertain
        )
        return found.passed

    assert passes(torch.tensor([math.nan, 0.5, 0.75]))
    assert not passes(torch.tensor([math.nan, math.nan, 0.75]))
    assert not passes(torch.tensor([math.inf, 0.5, 0.75]))  # a wrong number is none
    assert not passes(torch.tensor([0.3, 0.5, 0.75]))
