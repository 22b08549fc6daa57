"""Whose time a step is, worked by hand: a model of two blocks, a loss and an optimizer."""

import pytest

from kernel_lsp.programs.shares import AT_BEST, MIN_ROOT, ShareRow, Shares

MODEL, BLOCK, NORM, LOSS = ("m", "Model"), ("m", "Block"), ("m", "Norm"), ("m", "Loss")


def row(
    us: float, *ranges: tuple[str, str], kind: str = "forward", products: float = 0
) -> ShareRow:
    return ShareRow(ranges=ranges, kind=kind, us=us, products_us=products)


def shares(**changes: object) -> Shares:
    given = {
        "device": "cuda",
        "total_us": 1000.0,
        "rows": (
            row(100.0, MODEL),
            row(300.0, MODEL, BLOCK, products=200.0),
            row(100.0, MODEL, BLOCK, NORM),
            row(200.0, MODEL, BLOCK, kind="backward"),
            row(50.0, LOSS),
            row(150.0, kind="optimizer"),
            row(100.0, kind="other"),
        ),
        "calls": {(MODEL,): 1, (MODEL, BLOCK): 4, (MODEL, BLOCK, NORM): 8, (LOSS,): 1},
        "step_ms": 2.0,
    }
    return Shares(**{**given, **changes})  # type: ignore[arg-type]


def test_a_target_holds_its_time_with_all_that_it_calls() -> None:
    found = shares()
    assert found.of_target(MODEL) == pytest.approx(0.7)
    assert found.of_target(BLOCK) == pytest.approx(0.6)
    assert found.of_target(NORM) == pytest.approx(0.1)
    assert found.of_target(("m", "Nobody")) == 0.0
    assert shares(total_us=0.0).of_target(MODEL) == 0.0


def test_products_on_tensor_cores_leave_only_what_is_above_their_best_case() -> None:
    assert row(300.0, products=200.0).gainable_us == pytest.approx(300.0 - AT_BEST * 200.0)
    assert shares().gainable(BLOCK) == pytest.approx(0.6 - AT_BEST * 0.2)


def test_time_is_of_a_kind_or_of_nobody() -> None:
    found = shares()
    assert found.of_kind("backward") == pytest.approx(0.2)
    assert found.of_kind("optimizer") == pytest.approx(0.15)
    assert found.of_nobody == pytest.approx(0.1)
    assert found.within({BLOCK, LOSS}) == pytest.approx(0.65) and found.within(set()) == 0.0


def test_a_device_is_busy_for_its_share_of_the_step() -> None:
    assert shares().busy == pytest.approx(0.5)
    assert shares(step_ms=0.5).busy == 1.0
    assert shares(step_ms=None).busy is None and shares(device="cpu").busy is None


def test_optimizers_are_noticed_where_they_take_time_or_the_device_waits_for_the_host() -> None:
    computes = shares(step_ms=1.0)
    assert computes.would_notice_optimizers(0.15) and not computes.would_notice_optimizers(0.16)
    assert shares(step_ms=1.06).would_notice_optimizers(0.16)
    assert not shares(device="cpu").would_notice_optimizers(0.16)


def test_what_is_left_of_a_target_without_its_repeated_blocks() -> None:
    found = shares()
    assert found.alone(MODEL, {BLOCK}) == pytest.approx(0.1)
    assert found.alone(BLOCK, {NORM}) == pytest.approx(0.5 - AT_BEST * 0.2)
    assert found.alone(BLOCK, {MODEL}) == found.gainable(BLOCK)
    once = shares(calls={(MODEL,): 1, (MODEL, BLOCK): 1})
    assert once.alone(MODEL, {BLOCK}) == once.gainable(MODEL)


def test_roots_are_what_the_program_calls_itself_the_most_expensive_first() -> None:
    assert shares().roots() == [MODEL, LOSS]
    assert shares(calls={(LOSS,): 1}).roots() == [LOSS]
    tiny = shares(rows=(row(1000.0, MODEL), row(0.001, LOSS)))
    assert tiny.roots() == [MODEL]
    bound = shares(total_us=1.0, rows=(row(MIN_ROOT, LOSS),))
    assert bound.roots() == [LOSS]


def test_the_repeated_module_is_the_one_called_most_often_of_those_that_hold_as_much() -> None:
    found = shares()
    assert found.repeated(MODEL, {BLOCK, NORM}) == BLOCK
    assert found.repeated(MODEL, {NORM}) == NORM
    assert found.repeated(MODEL, set()) is None
    twice = shares(calls={(MODEL,): 2, (MODEL, BLOCK): 3})
    assert twice.repeated(MODEL, {BLOCK}) is None
    assert shares(calls={(MODEL,): 2, (MODEL, BLOCK): 4}).repeated(MODEL, {BLOCK}) == BLOCK
    alike = shares(
        rows=(row(100.0, MODEL, BLOCK), row(400.0, MODEL, BLOCK, NORM)),
        calls={(MODEL,): 1, (MODEL, BLOCK): 2, (MODEL, BLOCK, NORM): 8},
    )
    assert alike.repeated(MODEL, {BLOCK, NORM}) == NORM


def test_a_target_is_within_another_where_all_of_its_calls_are() -> None:
    found = shares()
    assert found.is_within(NORM, BLOCK) and found.is_within(NORM, MODEL)
    assert not found.is_within(MODEL, MODEL) and not found.is_within(BLOCK, LOSS)
    assert not found.is_within(("m", "Nobody"), MODEL)
    both = shares(calls={(MODEL, NORM): 1, (NORM,): 1})
    assert not both.is_within(NORM, MODEL)


def test_shares_are_read_from_what_the_profiler_wrote() -> None:
    profile = {
        "device": "cuda",
        "total_us": 10,
        "rows": [
            {"ranges": [["m", "Model"]], "kind": "forward", "us": 4, "products_us": 1},
            {"ranges": [], "kind": "other", "us": 6},
        ],
        "calls": [{"ranges": [["m", "Model"]], "calls": 2}],
    }
    assert Shares.of(profile, 0.5) == Shares(
        device="cuda",
        total_us=10.0,
        rows=(row(4.0, MODEL, products=1.0), row(6.0, kind="other")),
        calls={(MODEL,): 2},
        step_ms=0.5,
    )
