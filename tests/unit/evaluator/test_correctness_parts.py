"""Layouts, batches, ways of updating, guard bands, relations and matching: each by itself."""

import random
import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from kernel_lsp.errors import EvaluationError  # noqa: E402
from kernel_lsp.evaluator import relations, tensors  # noqa: E402
from kernel_lsp.evaluator.judging import matching, variations  # noqa: E402
from kernel_lsp.evaluator.running import memory, parameters  # noqa: E402
from kernel_lsp.evaluator.running.watch.functions import WatchedFunctions  # noqa: E402

pytestmark = pytest.mark.torch


# --- layouts and batches ------------------------------------------------------------------------


@given(
    shape=st.lists(st.integers(1, 5), min_size=0, max_size=4),
    layout=st.sampled_from(variations.LAYOUTS),
)
def test_another_layout_has_the_same_values(shape: list[int], layout: str) -> None:
    values = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    made = variations.relay_memory(values, layout)
    assert made.shape == values.shape and torch.equal(made, values)


def test_layouts_are_what_they_are_called() -> None:
    values = torch.arange(12.0).reshape(3, 4).requires_grad_()
    assert variations.relay_memory(values, "transposed").stride() == (1, 3)
    assert variations.relay_memory(values, "sliced").stride() == (9, 1)
    offset = variations.relay_memory(values, "offset")
    assert offset.is_contiguous() and offset.storage_offset() == 1 and offset.requires_grad
    assert variations.relay_memory(torch.arange(3.0), "transposed").stride() == (2,)
    expanded = torch.ones(1).expand(4)
    assert variations.relay_memory(expanded, "sliced") is expanded


@pytest.mark.parametrize("layout", variations.LAYOUTS)
def test_rows_of_a_delicate_program_begin_at_multiples_of_16_bytes(layout: str) -> None:
    values = torch.arange(64.0, dtype=torch.bfloat16).reshape(4, 2, 8)
    made = variations.relay_memory(values, layout, aligned=True)
    assert torch.equal(made, values) and made.storage_offset() == 8
    assert layout == "transposed" or all(step % 8 == 0 for step in made.stride()[:-1])


def test_a_batch_is_shared_by_all_tensors_of_the_first_ones_size_or_is_the_firsts_alone() -> None:
    arguments = [[torch.ones(4, 2), 3, torch.ones(4), torch.ones(5)], {}]
    assert variations.batches(arguments) == [(0, 1), (0,)]
    assert variations.batches([[torch.tensor(1.0)], {}]) == []
    assert set(variations.sizes(arguments, (0, 1))) == {3, 5, 9}


def test_a_big_workload_is_only_made_smaller() -> None:
    big = [[torch.empty(64, 2**16)], {}]
    assert variations.sizes(big, (0,)) == [16]
    assert variations.sizes([[torch.empty(1, 2**22)], {}], (0,)) == []


def test_another_batch_takes_its_rows_from_the_given_ones() -> None:
    index = torch.tensor([5, 6, 7])
    arguments = [[torch.arange(3.0)[:, None], index, torch.ones(2)], {}]
    made = variations.change_batch(arguments, (0, 1), 5, torch.Generator().manual_seed(0))
    assert made[0][0].shape == (5, 1) and made[0][2].shape == (2,)
    assert torch.equal(made[0][1], index[made[0][0].flatten().long()])


def test_other_rows_stand_behind_a_smaller_batch_in_the_same_memory() -> None:
    draw = torch.Generator().manual_seed(0)
    table = torch.arange(10.0).view(5, 2)
    arguments = [[torch.arange(6.0), table], {}]
    overfull = [variations.overfull(arguments, (0,), torch.tensor([3, 1]), draw) for _ in range(2)]
    made, other = (variations.first_rows(all_rows, own) for all_rows, own in overfull)
    (batch, whole), (again, _) = made[0], other[0]
    assert batch.tolist() == again.tolist() == [3.0, 1.0] and torch.equal(whole, table)
    behind = [t.as_strided((6,), (1,))[2:] for t in (batch, again)]
    assert (
        not torch.equal(*behind)
        and whole.untyped_storage().nbytes() > table.untyped_storage().nbytes()
    )


def test_every_way_of_updating_comes_up_and_the_first_is_loading() -> None:
    state = {"w": torch.ones(2)}
    order = variations.updates(state, 10, random.Random(1))
    assert order[0] == "load_state_dict" and set(order) == set(variations.UPDATES)
    mixed = {"w": torch.ones(2), "h": torch.ones(2, dtype=torch.float16)}
    assert "round_trip" not in variations.updates(mixed, 10, random.Random(1))
    assert variations.updates({}, 2, random.Random(1)) == ["none", "none"]


@pytest.mark.parametrize("way", variations.UPDATES)
def test_parameters_and_buffers_arrive_whatever_the_way(way: str) -> None:
    target = torch.nn.BatchNorm1d(3)
    state = {k: torch.full_like(v, 7) for k, v in target.state_dict().items()}
    parameters.update(target, state, way)
    assert all(torch.equal(v, state[k]) for k, v in target.state_dict().items())
    assert target.weight.dtype is torch.float32


def test_versions_or_addresses_tell_a_careful_cache_of_every_update() -> None:
    target = torch.nn.Linear(3, 3)
    seen = {(target.weight.data_ptr(), target.weight._version)}
    for number, way in enumerate((*variations.UPDATES, *variations.UPDATES), start=2):
        state = {k: torch.randn_like(v) for k, v in target.state_dict().items()}
        parameters.update(target, state, way)
        seen.add((target.weight.data_ptr(), target.weight._version))
        assert len(seen) == number, way


def test_a_candidate_that_lacks_a_parameter_is_told_so() -> None:
    with pytest.raises(EvaluationError, match="does not take the reference's parameters"):
        parameters.update(
            torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2).state_dict(), "copy"
        )


def test_switching_the_mode_leaves_every_module_in_its_own() -> None:
    target = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.BatchNorm1d(2))
    target[1].eval()
    parameters.switch_mode(target)
    assert target.training and target[0].training and not target[1].training


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["as_given", *variations.LAYOUTS])
@pytest.mark.parametrize("fresh", [False, True])
def test_inputs_are_placed_with_their_values_and_layout(layout: str, fresh: bool) -> None:
    values = variations.relay_memory(torch.arange(12.0).reshape(3, 4), layout).requires_grad_()
    held = memory.Memory("cpu")
    placed = held.place([values], fresh=fresh)[0]
    assert (
        torch.equal(placed, values) and placed.stride() == values.stride() and placed.requires_grad
    )
    assert placed.data_ptr() % 16 == (0 if layout == "as_given" else 4)
    assert held.problems() == []


def test_the_address_is_old_or_new_as_asked_and_the_object_always_new() -> None:
    held = memory.Memory("cpu")
    first = held.place([torch.ones(5)], fresh=False)[0]
    second = held.place([torch.zeros(5)], fresh=False)[0]
    third = held.place([torch.zeros(5)], fresh=True)[0]
    assert first.data_ptr() == second.data_ptr() != third.data_ptr()
    assert first is not second and second._version == first._version


@pytest.mark.parametrize("place", [-1, 5])
def test_writing_beside_an_input_is_seen(place: int) -> None:
    held = memory.Memory("cpu")
    placed = held.place([torch.ones(5)], fresh=False)[0]
    placed.as_strided((1,), (1,), placed.storage_offset() + place).fill_(3.0)
    assert [note["name"] for note in held.problems()] == ["guard-bands"]


def test_writing_into_the_gap_between_rows_is_seen() -> None:
    held = memory.Memory("cpu")
    placed = held.place([variations.relay_memory(torch.ones(3, 4), "sliced")], fresh=False)[0]
    placed.as_strided((1,), (1,), placed.storage_offset() + 5).fill_(3.0)
    assert [note["name"] for note in held.problems()] == ["guard-bands"]


@pytest.mark.parametrize(
    "values", [torch.ones(5), torch.ones(1).expand(5)], ids=["plain", "expanded"]
)
def test_writing_into_an_input_is_seen(values: "torch.Tensor") -> None:
    held = memory.Memory("cpu")
    placed = held.place([values], fresh=False)[0]
    placed[:1].fill_(3.0)
    assert [note["name"] for note in held.problems()] == ["inputs-untouched"]


def test_what_lies_around_an_input_is_not_a_number() -> None:
    placed = memory.Memory("cpu").place([torch.ones(5)], fresh=False)[0]
    beside = placed.as_strided((1,), (1,), placed.storage_offset() + 5)
    assert bool(beside.isnan().all())


# --- relations ------------------------------------------------------------------------------------


def test_views_of_one_storage_are_related_only_where_they_share_elements() -> None:
    x = torch.arange(12.0).reshape(2, 6)
    left, right = x.chunk(2, dim=1)
    assert not relations.overlap(left, right)
    assert relations.overlap(left, x) and relations.overlap(x[:, 2:4], left)
    assert not relations.overlap(x, x.clone())


def test_relations_name_inputs_state_and_earlier_outputs() -> None:
    x, w = torch.ones(4), torch.ones(3)
    fresh = torch.ones(2)
    found = relations.relations((x[:2], w, fresh, fresh[:1]), [[x], {}], {"w": w})
    assert found == [["input 0"], ["state 'w'"], [], ["output 2"]]


def test_drawing_changes_a_generators_digest_and_seeding_restores_it() -> None:
    torch.manual_seed(1)
    before = relations.generators("cpu")
    torch.rand(1)
    assert relations.generators("cpu") != before
    torch.manual_seed(1)
    assert relations.generators("cpu") == before


def test_all_of_numpys_state_counts_however_it_prints_arrays() -> None:
    state = np.random.get_state(legacy=False)
    other = {**state, "state": {**state["state"], "key": state["state"]["key"].copy()}}
    other["state"]["key"][300] ^= 1
    try:
        with np.printoptions(threshold=5):
            before = relations.generators("cpu")
            np.random.set_state(other)
            assert relations.generators("cpu") != before
    finally:
        np.random.set_state(state)


# --- matching -------------------------------------------------------------------------------------


def test_strides_of_dimensions_of_size_one_do_not_matter() -> None:
    shape = torch.Size([2, 1, 3])
    assert matching.same_strides(shape, [3, 99, 1], (3, 3, 1))
    assert not matching.same_strides(shape, [1, 3, 2], (3, 3, 1))
    assert matching.same_strides(torch.Size([0, 3]), [1, 1], (3, 1))
    assert not matching.same_strides(shape, "strides", (3, 3, 1))


def test_channels_last_is_recognized_and_a_transposed_matrix_is_not() -> None:
    assert matching.is_channels_last(torch.Size([2, 16, 10, 10]), [1600, 1, 160, 16])
    assert not matching.is_channels_last(torch.Size([2, 16, 10, 10]), [1600, 100, 1, 10])
    assert not matching.is_channels_last(torch.Size([3, 4]), [1, 3])


@pytest.mark.parametrize(
    "got, said",
    [
        ([torch.ones(2)], "nested"),
        (torch.ones(3), "shape"),
        (torch.ones(2, dtype=torch.float64), "float64"),
        (1.0, "no tensor"),
    ],
)
def test_structure_is_compared_before_values(got: object, said: str) -> None:
    with pytest.raises(matching.Mismatch, match=said):
        matching.match_structure(got, torch.ones(2))


def test_a_plain_nan_equals_itself() -> None:
    matching.match_structure({"a": float("nan")}, {"a": float("nan")})


def test_gradients_exist_in_the_same_places() -> None:
    one = torch.ones(2)
    matching.match_gradients({"input 0": one, "input 1": None}, {"input 0": one, "input 1": None})
    for got in ({"input 0": None}, {}, {"input 0": torch.ones(3)}):
        with pytest.raises(matching.Mismatch):
            matching.match_gradients(got, {"input 0": one})
    with pytest.raises(matching.Mismatch, match="a gradient, in the reference none"):
        matching.match_gradients({"input 0": one}, {"input 0": None})


# --- what a stranger says -------------------------------------------------------------------------


def test_a_strangers_answer_opens_no_file_and_allocates_no_strides() -> None:
    out = tensors.TensorOutbox()
    spec = tensors.encode(torch.ones(2), out)
    spec["stride"], spec["offset"] = [10**12], 10**12
    assert torch.equal(tensors.decode_values(spec, out.blobs), torch.ones(2))
    with pytest.raises(ValueError, match="may not name files"):
        tensors.decode_values({**spec, "file": "/dev/zero"}, out.blobs)


def test_a_storage_offset_comes_back_as_far_as_alignment_goes() -> None:
    out = tensors.TensorOutbox()
    value = torch.arange(200.0)[65:70]
    back = tensors.decode(tensors.encode(value, out), out.blobs)
    assert torch.equal(back, value) and back.storage_offset() == 1


def test_a_launcher_that_triton_has_compiled_is_no_module_that_a_candidate_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = "torch._inductor.runtime.compile_tasks.cabc"
    names = ("__triton_launcher", compiled, "of_the_user")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    watched = WatchedFunctions()
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert watched.changes() == ["sys.modules['of_the_user']"]
