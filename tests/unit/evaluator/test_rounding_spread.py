"""Right rewrites whose sums cancel by chance are not refused, by seeds that were; and what that
rests on lets nothing else through."""

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator.circumstances import AUTOCAST  # noqa: E402
from kernel_lsp.evaluator.judging import numerics, study, usable  # noqa: E402
from kernel_lsp.evaluator.judging.drawing import draw  # noqa: E402
from kernel_lsp.evaluator.judging.oracle import Reference  # noqa: E402
from kernel_lsp.evaluator.judging.planning import plain  # noqa: E402
from kernel_lsp.evaluator.judging.session import (  # noqa: E402
    GRADIENT_CONSTANTS,
    Examination,
    GradientComparison,
    _weights,
)
from kernel_lsp.evaluator.judging.spread import (  # noqa: E402
    ROUNDS,
    ROUNDS_OF_MANY,
    OtherRoundings,
    RoundingSpread,
    RunFunctions,
    rounds_for,
    widen_until_passed,
)
from kernel_lsp.evaluator.tensors import tensor_leaves  # noqa: E402
from kernel_lsp.evaluator.verify import request_from_files  # noqa: E402
from kernel_lsp.records import Program  # noqa: E402

pytestmark = pytest.mark.torch
PROGRAM = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(65, 260)

    def forward(self, x):
        return self.linear(x).sum(dim=1)

def get_inputs():
    return [torch.randn(33, 65)]
"""
THIRDS = PROGRAM.replace("self.linear(x)", "sum(self.linear(x) for _ in range(3)).div(3)")
BIAS = "gradient of parameter 'linear.bias'"
DOT = """
import torch

class Model(torch.nn.Module):
    def forward(self, x, y):
        return (x * y).sum()

def get_inputs():
    return [torch.randn(4096), torch.randn(4096)]
"""
SQUARES = """
import torch

class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()

    @staticmethod
    def backward(ctx, g):
        return g

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(33, dtype=torch.bfloat16))
        self.bias = torch.nn.Parameter(torch.randn(33, dtype=torch.bfloat16))

    def forward(self, x):
        d = (x * self.weight - self.bias).float()
        return Through.apply((d * d).mean(0).to(x.dtype))

def get_inputs():
    return [torch.randn(17, 33, dtype=torch.bfloat16)]
"""
ATTENTION = """
import torch

class Model(torch.nn.Module):
    def forward(self, q, k, v):
        s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        return s.softmax(-1) @ v

def get_inputs():
    return [torch.randn(2, 2, 24, 64, dtype=torch.bfloat16) for _ in range(3)]
"""
ROWS = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        f = x.float()
        return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)

def get_inputs():
    return [torch.randn(14, 40, dtype=torch.bfloat16)]
"""
BOUNDS = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.hardtanh(x) * 1

def get_inputs():
    return [torch.randn(8, 32, dtype=torch.bfloat16).sign()]
"""


class Pair:
    """A reference and a candidate in this process; what the judge says of single trials."""

    def __init__(self, reference: str, candidate: str) -> None:
        asked = request_from_files(reference, candidate, device="cpu")
        self.reference = Reference(asked.reference, asked.workload, "cpu")
        self.reference.settle(self.reference.given(0))
        same = {**plain("as_given"), "number": 0}
        trial = draw(self.reference, 0, same)
        usable.first_call(self.reference, trial)
        study.study(self.reference, trial, {**trial})
        program = Program(source=candidate, entry=asked.candidate_entry, kind=asked.reference.kind)
        self.candidate = Reference(program, asked.workload, "cpu")

    def problems(self, seed: int, chosen: Callable[[dict], bool]) -> list[str]:
        """What is refused of the trials of this seed that ``chosen`` picks."""
        session = Examination(self.reference, seed, "faithful")
        return [
            one
            for descriptor in session.plan
            if chosen(descriptor)
            for one in self._problems(session, draw(self.reference, seed, descriptor))
        ]

    def _problems(self, session: Examination, trial: dict) -> list[str]:
        ran, answer = (
            one.run(trial, trial["noise_seed"]) for one in (self.reference, self.candidate)
        )
        trial.update(ran=ran, answer=answer.output)
        pairs = list(zip(tensor_leaves(answer.output), tensor_leaves(ran.output), strict=True))
        reply = session._compare_values(trial, pairs, ran.output)
        found = [] if reply["ok"] else [reply["detail"]]
        if not trial["gradients"]:
            return found
        trial["weights"] = [_weights(t, trial["draw"]) for t in tensor_leaves(ran.output)]
        trial["weights"] = session._relaid_weights(trial, trial["weights"])
        given = trial, trial["weights"], trial["noise_seed"]
        want, got = (one.gradients(*given) for one in (self.reference, self.candidate))
        names = list(want)
        asked = GradientComparison(
            trial=trial, names=names, got=got, want=want, constants=GRADIENT_CONSTANTS
        )
        results = session._compared_gradients(asked)
        named = zip(names, results, strict=True)
        return found + [f"{name}: {one.detail}" for name, one in named if not one.passed]


@pytest.fixture(scope="module")
def thirds() -> Pair:
    return Pair(PROGRAM, THIRDS)


@pytest.mark.parametrize("seed", [9, 15])
def test_a_gradient_that_cancels_under_autocast_is_held_to_its_terms(
    thirds: Pair, seed: int
) -> None:
    """A bias' gradient depends on the weights of gradients alone, which nobody moved."""
    assert thirds.problems(seed, lambda trial: trial["circumstance"] == AUTOCAST) == []


def test_a_gradient_in_16_bits_that_is_one_number_is_held_to_what_rounding_makes_of_one() -> None:
    """Its 260 elements are the same sum of 33 weights, so their errors have one direction."""
    texts = (
        text.replace("65, 260", "65, 260, dtype=torch.bfloat16").replace(
            "randn(33, 65", "randn(33, 65, dtype=torch.bfloat16"
        )
        for text in (PROGRAM, THIRDS)
    )
    pair = Pair(*texts)
    assert pair.problems(3, lambda trial: trial["edit"] == "batch") == []
    assert pair.problems(6, lambda trial: trial["family"] == "shifted" and trial["grad"]) == []


def test_terms_that_cancel_near_the_largest_value_may_overflow_in_another_order(
    thirds: Pair,
) -> None:
    assert thirds.problems(3, lambda trial: trial["family"] == "extreme") == []


def test_a_sum_in_another_order_that_is_small_by_chance_is_right() -> None:
    pair = Pair(DOT, DOT.replace("(x * y).sum()", "torch.dot(x, y)"))
    assert pair.problems(9, lambda trial: trial["layout"] == "sliced") == []
    assert pair.problems(10, lambda trial: trial["family"] == "zeros_and_repeats") == []


@pytest.mark.parametrize(
    "wrong",
    [
        "torch.dot(x, y) * (1 + 3e-5)",
        "torch.dot(x[1:], y[1:])",
        "torch.dot(x.bfloat16().float(), y)",
        "torch.dot((x * 2048).round() / 2048, y)",
        "torch.dot(x, y) + 1e-4 * x.abs().sum()",
    ],
)
def test_a_sum_that_leaves_something_out_is_refused(wrong: str) -> None:
    pair = Pair(DOT, DOT.replace("(x * y).sum()", wrong))
    assert pair.problems(1, lambda trial: trial["number"] in (1, 4))


@pytest.mark.parametrize("wrong", ["g * 1.02", "torch.cat([g[:-1], g[-1:] * 0])", "g * 0.98"])
def test_a_gradient_in_16_bits_that_is_wrong_by_a_factor_is_refused(wrong: str) -> None:
    """Where every rule had the noise of all rounds, 1.02 was accepted here."""
    pair = Pair(SQUARES, SQUARES.replace("return g\n", f"return {wrong}\n"))
    for seed in range(2):
        assert pair.problems(seed, lambda trial: trial["gradients"])


@pytest.mark.parametrize("wrong", ["g * 1.02", "g * 0.98"])
def test_a_factor_in_a_gradient_of_eight_elements_is_seen_in_all_trials(wrong: str) -> None:
    """One trial cannot tell it from roundings: it passed before."""
    small = SQUARES.replace("17, 33", "3, 8").replace("randn(33", "randn(8")
    scaled = small.replace("return g\n", f"return {wrong}\n")
    pair = Pair(small, scaled.replace("x * self.weight", "x * Through.apply(self.weight)"))
    found = pair.problems(0, lambda trial: trial["gradients"])
    assert any("in common" in one for one in found)


def test_the_same_gradient_that_is_right_passes() -> None:
    right = Pair(SQUARES, SQUARES.replace("(d * d).mean(0)", "(d.square().sum(0) / len(x))"))
    assert right.problems(0, lambda trial: trial["gradients"]) == []


def test_attention_that_errs_less_is_not_refused_where_a_saturated_row_is_exact_by_luck() -> None:
    """Its probabilities round to 0 and 1, so torch's gradient of that row is 0."""
    call = "torch.nn.functional.scaled_dot_product_attention(q, k, v)"
    pair = Pair(ATTENTION, ATTENTION.replace("s.softmax(-1) @ v", call))
    assert pair.problems(0, lambda trial: trial["family"] == "heavy_tailed" and trial["grad"]) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_norm_of_the_largest_values_may_be_computed_in_float64(dtype: str) -> None:
    """The original's float() is float64 in the oracle, where the mean of squares does not
    overflow."""
    rows = ROWS.replace("bfloat16", dtype)
    pair = Pair(rows, rows.replace("x.float()", "x.double()"))
    assert pair.problems(0, lambda trial: trial["family"] in ("as_given", "extreme")) == []


def test_a_slope_with_a_step_at_a_value_may_be_that_of_either_side() -> None:
    """An oracle is moved to both sides; all were on one side in every fourth trial."""
    clamped = BOUNDS.replace("torch.nn.functional.hardtanh(x)", "x.clamp(-1, 1)")
    pair = Pair(BOUNDS, clamped)
    assert pair.problems(0, lambda trial: trial["grad"] and trial["family"] == "as_given") == []
    wrong = Pair(BOUNDS, clamped.replace("* 1", "* torch.where(x.detach() < 0, 1.0, 1.05)"))
    assert wrong.problems(0, lambda trial: trial["grad"] and trial["family"] == "as_given")


def test_other_roundings_move_results_of_16_bits_alone_and_by_one_spacing_at_most() -> None:
    x = torch.rand(999, generator=torch.Generator().manual_seed(1)) + 1
    narrow = x.bfloat16()
    with OtherRoundings(torch.Generator().manual_seed(2)):
        moved, same, written = narrow + 0, x + 0, narrow.clone().mul_(1)
    away = (moved - narrow).abs()
    assert torch.equal(same, x) and 0 < float(away.count_nonzero()) < 999
    assert float(away.max()) == 2**-7 and float((written - narrow).abs().max()) == 2**-7


@pytest.mark.parametrize("worse, passes", [(0.9, True), (1.5, False)])
def test_only_who_errs_no_more_than_the_original_is_held_to_its_other_roundings(
    worse: float, passes: bool
) -> None:
    draw = torch.Generator().manual_seed(3)
    oracle = torch.rand(64, 64, generator=draw, dtype=torch.float64) + 1
    noise = torch.randn(64, 64, generator=draw, dtype=torch.float64) * 2e-4
    large = noise[0] * 50
    reference, wrong = noise.clone(), noise * worse
    reference[4], wrong[3] = large, large * worse
    candidate, reference = (oracle + wrong).half(), (oracle + reference).half()
    others = noise.index_fill(0, torch.tensor([3, 4]), 0.0)
    others[3] = others[4] = large.roll(1)
    assert not numerics.compare(candidate, reference, oracle).passed
    found = numerics.compare(candidate, reference, oracle, rounded=(oracle + others,))
    assert found.passed is passes


def a_number(error: float, size: float = 1.0) -> RunFunctions:
    """A result that is one number in float64; its original is off by ``error``."""
    true = torch.tensor([size], dtype=torch.float64)
    return RunFunctions(
        original=lambda trial: [(true + error).float()],
        oracle=lambda trial, moved: [true.clone()],
        as_good=lambda trial: trial,
        anew=lambda trial, number: trial,
    )


def rounds(runs: RunFunctions, candidate: float, most: int = ROUNDS) -> tuple[bool, int]:
    truth = torch.tensor([0.001], dtype=torch.float64)
    measured = RoundingSpread(runs=runs, trial={"family": "as_given"}, truth=[truth])

    def compare(now: RoundingSpread) -> list[numerics.Comparison]:
        mine = torch.tensor([candidate])
        return [numerics.compare(mine, truth.float(), truth, **now.of(0))]

    results = widen_until_passed(measured, compare, rounds=most)
    return results[0].passed, len(measured.drawn)


def test_who_is_right_needs_no_round_and_who_is_wrong_by_far_gets_none() -> None:
    assert rounds(a_number(0.0), 0.001) == (True, 0)
    assert rounds(a_number(0.0), 0.002) == (False, 0)


def test_rounds_end_when_it_passes_or_when_there_are_no_more() -> None:
    """16 eps of a result that is 1.0 elsewhere are 1.9e-6; here it is 0.001 by chance."""
    assert rounds(a_number(0.0, size=0.001), 0.001 + 5e-8) == (False, ROUNDS)
    assert rounds(a_number(0.0, size=0.001), 0.001 + 5e-8, most=2) == (False, 2)


def test_the_floor_is_a_share_of_what_the_result_usually_is() -> None:
    assert rounds(a_number(0.0, size=0.1), 0.001 + 5e-8) == (True, 1)


def test_an_original_that_usually_errs_more_is_no_measure_below_that() -> None:
    assert rounds(a_number(3e-6, size=0.001), 0.001 + 1e-7) == (True, 1)


def test_one_draw_of_four_that_explodes_says_nothing() -> None:
    found = RoundingSpread(runs=a_number(0.0), trial={"family": "as_given"}, truth=None)
    small, large = numerics.Usual(size=1.0), numerics.Usual(size=1e30)
    found.drawn = [[small]] * 6 + [[large]] * 2
    assert found.usual(0) == small


def test_large_programs_get_few_rounds_or_none() -> None:
    def of(elements: int, results: int) -> int:
        made = (torch.empty(count, device="meta") for count in (elements, results))
        arguments, result = made
        return rounds_for({"arguments": [arguments]}, [result])

    assert of(2**12, 1) == ROUNDS and of(2**21, 1) == of(2**12, 2**12) == ROUNDS_OF_MANY
    assert of(2**27, 1) == of(1, 2**27) == 0


def test_values_at_the_edges_are_not_drawn_anew() -> None:
    found = RoundingSpread(runs=a_number(0.0), trial={"family": "extreme"}, truth=None)
    assert found.more(0) and found.drawn == [] and found.usual(0) == numerics.UNKNOWN
