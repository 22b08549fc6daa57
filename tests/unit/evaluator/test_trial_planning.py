"""What the trials of a session vary, for references that take one thing and refuse another."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator.circumstances import AUTOCAST, INFERENCE, OTHER_MODE  # noqa: E402
from kernel_lsp.evaluator.judging import drawing, inputs, needs, planning  # noqa: E402
from kernel_lsp.evaluator.judging.oracle import Reference  # noqa: E402
from kernel_lsp.records import Program, TargetKind, Workload, WorkloadOrigin  # noqa: E402

pytestmark = pytest.mark.torch


def reference(**changes: Any) -> Any:
    """A module of small calls in inference that takes nothing but other values."""
    given = {
        "range_bound": False, "elements": 1000, "batch": None, "layouts": [], "edges": (),
        "may_record_gradients": False, "grad": False, "changed": (), "sizes": (),
        "own_state": {"weight": torch.zeros(4)}, "circumstances": (), "is_module": True,
        "subject": SimpleNamespace(has_single=False), "output_dtypes": [torch.float32],
    }  # fmt: skip
    return SimpleNamespace(**{**given, **changes})


def planned(seed: int = 3, **changes: Any) -> list[dict[str, Any]]:
    return planning.plan(reference(**changes), seed)


def test_every_family_of_values_is_tried_and_the_last_has_the_parameters_as_constructed() -> None:
    trials = planned()
    usual = [trial["family"] for trial in trials if trial["edit"] is None]
    assert usual == list(inputs.FAMILIES)
    assert trials[-1]["family"] == "as_given_again"
    assert [trial["number"] for trial in trials] == list(range(1, len(trials) + 1))
    bound = planned(range_bound=True)
    assert {trial["family"] for trial in bound} == set(inputs.IN_RANGE)


def test_one_row_of_the_parameters_and_of_the_inputs_is_changed_after_the_first_trial() -> None:
    assert [trial["edit"] for trial in planned()[:4]] == [None, "parameters", "inputs", None]


def test_parameters_are_not_set_where_the_inputs_alone_change() -> None:
    trials = planned()
    assert trials[0]["update"] == "load_state_dict" and trials[2]["update"] == "none"
    assert planned(changed=("x",))[2]["update"] != "none"
    assert {trial["update"] for trial in planned(own_state={})} == {"none"}


def test_one_call_is_made_twice_and_never_one_of_the_edited() -> None:
    for seed in range(20):
        repeated = [t for t in planned(seed, edges=("infinite",)) if t["repeat"]]
        assert len(repeated) == 1
        assert repeated[0]["edit"] is None and not repeated[0]["lenient"]


@pytest.mark.parametrize("recorded", [False, True])
def test_gradients_are_asked_for_under_autocast_and_in_the_other_mode(recorded: bool) -> None:
    names = (OTHER_MODE, AUTOCAST, INFERENCE)
    trials = planned(circumstances=names, may_record_gradients=recorded)
    asked = [(t["circumstance"], t["grad"]) for t in trials if t["circumstance"]]
    usual = [(OTHER_MODE, False), (AUTOCAST, recorded), (INFERENCE, False)]
    assert asked == usual + [(OTHER_MODE, True)] * recorded
    assert all(trial["lenient"] for trial in trials if trial["circumstance"])


def test_of_a_big_workload_the_other_mode_is_tried_once_and_with_few_rows() -> None:
    trials = planned(
        circumstances=(OTHER_MODE,), may_record_gradients=True, elements=2**21,
        batch=((0,), (3, 5)),
    )  # fmt: skip
    found = [trial for trial in trials if trial["circumstance"]]
    assert [(trial["grad"], trial["batch"]) for trial in found] == [(False, 3)]


def test_the_other_mode_is_tried_with_a_batch_of_one() -> None:
    batch, other = ((0, 0),), ((0, 1),)
    trials = planned(circumstances=(OTHER_MODE,), sizes=[(batch, [1, 5]), (other, [1])])
    found = [(t["circumstance"], t["size"]) for t in trials if t["group"] == batch]
    assert (OTHER_MODE, 1) in found
    trials = planned(circumstances=(OTHER_MODE,), sizes=[(batch, [0, 5])])
    assert not [t for t in trials if t["circumstance"] and t["group"]]


def test_a_layout_that_asks_least_is_for_who_refuses_the_others() -> None:
    for seed in range(20):
        one = {t["layout"] for t in planned(seed, layouts=["sliced", "offset"])}
        assert one == {"as_given", "sliced"}
    assert {t["layout"] for t in planned(layouts=["offset"])} == {"as_given", "offset"}
    every = ["transposed", "sliced", "offset"]
    for seed in range(9):  # each has strides of its own that a kernel may take for granted
        asked = {t["layout"] for t in planned(seed, layouts=every)}
        few_rows = planned(seed, batch=((0,), (1, 3)), elements=2**21, layouts=every)
        assert asked == {"as_given", "transposed", "sliced"}
        assert {t["layout"] for t in few_rows if t["batch"]} == {"transposed", "sliced"}
    assert {t["layout"] for t in planned()} == {"as_given"}


def test_small_calls_are_tried_at_every_size_and_big_ones_at_a_few() -> None:
    batch = ((0,), (1, 3, 5))
    assert sorted(t["batch"] for t in planned(batch=batch) if t["batch"]) == [1, 3, 5]
    middle = planned(batch=batch, elements=2**18)
    assert len([t for t in middle if t["batch"]]) == 1
    big = planned(batch=batch, elements=2**21, layouts=["sliced"])
    assert [(t["layout"], t["batch"] in (1, 3, 5)) for t in big if t["batch"]] == [("sliced", True)]


def test_what_is_small_or_big_counts_elements_up_to_the_very_bound() -> None:
    batch, small = ((0,), (1, 3, 5)), planning.SMALL - 4
    assert len([t for t in planned(batch=batch, elements=small) if t["batch"]]) == 3
    assert len([t for t in planned(batch=batch, elements=small + 1) if t["batch"]]) == 1
    bound = planned(batch=batch, elements=2**20, layouts=["sliced"])
    assert [t["layout"] for t in bound if t["batch"]] == ["as_given"]


def test_of_huge_calls_only_the_first_and_the_last_values_are_of_full_size() -> None:
    trials = planned(batch=((0,), (2, 3)), elements=2**27)
    full = [trial["family"] for trial in trials if trial["batch"] is None and not trial["edit"]]
    assert full == ["as_given", "as_given_again"]


def test_sizes_of_other_dimensions_are_lenient_and_nothing_is_left_to_statistics_of_nothing() -> (
    None
):
    groups = ((((0, 1),), (0, 1, 7)),)
    found = [t for t in planned(sizes=groups) if t["group"]]
    assert sorted(t["size"] for t in found) == [0, 1, 7] and all(t["lenient"] for t in found)
    kept = [t["size"] for t in planned(sizes=groups, changed=("running_mean",)) if t["group"]]
    assert sorted(kept) == [1, 7]
    assert len([t for t in planned(sizes=groups, elements=2**18) if t["group"]]) == 2


def test_gradients_are_compared_where_values_are_smooth_and_once_more_the_second_time() -> None:
    trials = planned(grad=True)
    compared = [t for t in trials if t["gradients"]]
    assert {t["family"] for t in compared} <= set(planning.COMPARED)
    assert all(t["grad"] for t in trials if not t["circumstance"])
    assert [t["cotangents"] for t in compared[:4]] == [
        "as_given", "transposed", "expanded", "as_given",
    ]  # fmt: skip
    assert compared[0]["second"] and sum(t["second"] for t in compared) == 1
    assert compared[-1]["twice"] and sum(t["twice"] for t in compared) == 1


def test_where_nobody_said_inference_two_batches_follow_under_the_same_parameters() -> None:
    trials = planned(may_record_gradients=True)
    assert [t["edit"] for t in trials].count("batch") == 1
    at = next(n for n, t in enumerate(trials) if t["edit"] == "batch")
    assert trials[at]["grad"] and trials[at - 1]["grad"] and trials[at]["update"] == "none"
    coarse = planned(may_record_gradients=True, output_dtypes=[torch.bfloat16])
    assert len(coarse) == len(trials) + planning.FURTHER
    changed = planned(may_record_gradients=True, changed=("x",))
    assert "batch" not in [t["edit"] for t in changed]


def test_in_float32_where_a_program_can_run_in_it() -> None:
    single = planned(subject=SimpleNamespace(has_single=True))
    found = [trial["family"] for trial in single if trial["single"]]
    assert found[0] == "as_given" and len(found) == 2 and found[1] in planning.FAR
    assert not any(trial["single"] for trial in planned())


SOURCE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)

def get_inputs():
    return [torch.randn(6, 4)]
"""


def opened() -> Reference:
    program = Program(source=SOURCE, entry="Model", kind=TargetKind.MODULE)
    return Reference(program, Workload(name="w", origin=WorkloadOrigin.GET_INPUTS), "cpu")


def trial(number: int, **changes: Any) -> dict[str, Any]:
    return {**planning.plain("as_given"), "number": number, **changes}


def test_an_edited_trial_is_another_with_one_row_changed() -> None:
    made = opened()
    first, second = drawing.draw(made, 7, trial(1)), drawing.draw(made, 7, trial(2))
    parameters = drawing.draw(made, 7, trial(2, edit="parameters"))
    assert torch.equal(parameters["arguments"][0][0], first["arguments"][0][0])
    changed = parameters["state"]["layer.weight"] != first["state"]["layer.weight"]
    assert changed.any(1).sum() == 1
    assert parameters["label"] == "as_given, one row of the parameters changed"
    batch = drawing.draw(made, 7, trial(3, edit="batch"))
    assert all(torch.equal(batch["state"][key], second["state"][key]) for key in batch["state"])
    assert not torch.equal(batch["arguments"][0][0], second["arguments"][0][0])
    assert batch["label"] == "as_given, another batch under the same parameters"
    rows = drawing.draw(made, 7, trial(3, edit="inputs"))
    before = drawing.draw(made, 7, trial(2, edit="parameters"))
    assert (rows["arguments"][0][0] != before["arguments"][0][0]).any(1).sum() == 1
    assert all(torch.equal(rows["state"][key], before["state"][key]) for key in rows["state"])


def test_a_label_says_what_varies_and_nothing_else() -> None:
    made = opened()
    assert drawing.draw(made, 7, trial(1))["label"] == "as_given"
    made.may_record_gradients = True
    assert drawing.draw(made, 7, trial(1))["label"] == "as_given"
    asked = drawing.draw(made, 7, trial(1, grad=True))
    assert asked["label"] == "as_given, with gradients" and asked["arguments"][0][0].requires_grad
    made.may_record_gradients = False
    silent = drawing.draw(made, 7, trial(1, grad=True))
    assert silent["label"] == "as_given" and not silent["arguments"][0][0].requires_grad


def test_bytes_of_nested_values() -> None:
    values = {"a": [torch.zeros(2, 3)], "b": (torch.zeros(4, dtype=torch.int64), 7)}
    assert needs.bytes_of(values) == 24 + 32
    grown = needs.needed_bytes(100, 10, 5) - needs.needed_bytes(100, 10, 4)
    assert grown == needs.OF_RESULTS and needs.needed_bytes(3, 2, 0) == 5 * needs.OF_INPUTS


def test_edges_stand_at_a_few_places_and_leave_the_rest() -> None:
    draw = torch.Generator().manual_seed(3)
    values = torch.randn(50, 40)
    for family, least in (("infinite", 2), ("not_a_number", 1)):
        made = inputs.with_edges(values, family, draw)
        special = ~torch.isfinite(made)
        most = inputs.PLACES * len(inputs.special_values(values.dtype, family))
        assert least <= special.sum() <= most
        assert torch.equal(made[~special], values[~special])
    few = torch.randn(9)
    assert (~torch.isfinite(inputs.with_edges(few, "infinite", draw))).sum() <= 2
    assert torch.equal(inputs.with_edges(torch.ones(1), "infinite", draw), torch.ones(1))
    whole = torch.ones(50, dtype=torch.int64)
    assert inputs.with_edges(whole, "infinite", draw) is whole


def test_one_row_among_the_largest_values_is_zero() -> None:
    draw = torch.Generator().manual_seed(3)
    made = inputs.with_edges(torch.randn(6, 5, 8), "extreme", draw)
    assert int((made == 0).all(-1).sum()) == 1
    assert not bool((inputs.with_edges(torch.randn(40), "extreme", draw) == 0).all())


def test_edges_take_a_quarter_of_a_small_tensor_at_most() -> None:
    found = [
        int((~torch.isfinite(inputs.with_edges(torch.randn(16), "infinite", draw))).sum())
        for draw in map(torch.Generator().manual_seed, range(60))
    ]
    assert max(found) == 4


def test_a_third_is_zero_a_third_is_tied_and_a_sixth_rounds_at_the_half() -> None:
    values = torch.rand(60_000, generator=torch.Generator().manual_seed(1)) + 1
    made = inputs.zeros_and_repeats(values, torch.Generator().manual_seed(2))
    share = {
        "zeros": (made == 0).double().mean().item(),
        "tied": (made == values[0]).double().mean().item(),
        "untouched": (made == values).double().mean().item(),
    }
    assert share["zeros"] == pytest.approx(1 / 3, abs=0.01)
    assert share["tied"] == pytest.approx(1 / 3, abs=0.01)
    assert share["untouched"] == pytest.approx(1 / 6, abs=0.01)


def test_no_parameter_keeps_its_default_and_structure_is_kept() -> None:
    norm = torch.nn.BatchNorm1d(4000)
    norm.register_buffer("mask", torch.ones(3))
    made = inputs.random_state(norm, torch.Generator().manual_seed(5))
    assert made["weight"].mean() == pytest.approx(1.0, abs=0.05)
    assert made["weight"].std() == pytest.approx(0.5, abs=0.05)
    assert made["bias"].mean() == pytest.approx(0.0, abs=0.05)
    assert made["bias"].std() == pytest.approx(0.2, abs=0.02)
    assert made["running_mean"].std() == pytest.approx(0.3, abs=0.03)
    assert (made["running_var"] > 0).all()
    assert made["running_var"].log().std() == pytest.approx(0.5, abs=0.05)
    assert torch.equal(made["mask"], torch.ones(3)) and made["num_batches_tracked"] == 0


def test_parameters_keep_their_scale_and_one_positive_number_stays_positive() -> None:
    module = torch.nn.Module()
    module.spread = torch.nn.Parameter(3 + 0.1 * torch.randn(4000))
    module.temperature = torch.nn.Parameter(torch.tensor(0.05))
    module.nothing = torch.nn.Parameter(torch.zeros(0))
    temperatures = []
    for seed in range(50):
        made = inputs.random_state(module, torch.Generator().manual_seed(seed))
        temperatures.append(made["temperature"].item())
    assert made["spread"].mean() == pytest.approx(3.0, abs=0.02)
    assert made["spread"].std() == pytest.approx(0.1, abs=0.01)
    assert min(temperatures) > 0 and 0.01 < max(temperatures) < 0.2
    assert made["nothing"].numel() == 0
