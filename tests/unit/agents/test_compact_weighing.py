"""The question which course is faster: hand-worked words, and what an answer is worth."""

import math

import pytest

from kernel_lsp.agents.prompt_encoding import TOKENS, Situation, value_model
from kernel_lsp.agents.prompt_encoding.value_model import PlanQuestion, WeighedPlan
from kernel_lsp.records import CallCost, GraphView, Operation, OperationRole, Site


def site(skill: str, benefit: float | None, wraps: bool = False) -> Site:
    return Site(skill=skill, site="relu", summary="", proofs=(), benefit=benefit, wraps=wraps)


def cost(host: float, device: float, launches: int) -> CallCost:
    return CallCost(host_s=host, device_s=device, replayed_s=8.192e-6, launches=launches)


def test_two_courses_in_words() -> None:
    """Host 65.536 us = 2^16 ns, device 16.384 us. Fused: half the host's time, half is left. The
    other is a recording alone, 8.192 us: eight times as fast as the program, four times as the
    rule's; all is left of what sites save, and without a fusion host and device are as they
    were."""
    graph = GraphView(
        operations=(
            Operation(name="secret", role=OperationRole.INPUT, op=""),
            Operation(name="relu_1", role=OperationRole.CALL, op="relu", reads=(0,)),
        )
    )
    before = cost(65.536e-6, 16.384e-6, 4)
    question = PlanQuestion(
        situation=Situation(graph=graph, sites=(), device="cuda", capability="sm_90"),
        before=before,
        rule=value_model.plan([site("fused-matmul", 0.5)], cost(32.768e-6, 16.384e-6, 2)),
        ranked_plan=value_model.plan([site("cuda-graph", None, wraps=True)], before),
    )
    assert " ".join(question.words) == (
        "start on-cuda sm i9 triton evaluating reads unknown writes unknown operations relu "
        "given p16 p14 i4 g16 "
        "again fused matmul stop i2 g8 g8 g0 g8 "
        "then cuda graph stop i4 g24 g0 g0 g0 "
        "gone fused matmul more cuda graph got g16 g-8 g0 g-8"
    )
    assert question.tokens == [TOKENS[word] for word in question.words]
    assert set(question.offer.words) == {f"g{step}" for step in range(-16, 17)}


def test_a_course_is_told_by_its_sites_and_its_cost() -> None:
    told = value_model.plan([site("a", 0.5), site("b", 0.2), site("c", None)], cost(3e-5, 1e-5, 1))
    assert told == WeighedPlan(
        skills=("a", "b", "c"), cost=cost(3e-5, 1e-5, 1), left=0.4, wrapped=False
    )
    assert told.call_s == 3e-5
    assert value_model.plan([site("a", 1.0)], cost(0.0, 0.0, 0)).left == value_model.MIN_LEFT


def test_nothing_is_divided_by_nothing() -> None:
    empty = value_model.plan([], cost(0.0, 0.0, 0))
    asked = PlanQuestion(
        situation=Situation(graph=GraphView(operations=()), sites=(), device="cuda"),
        before=cost(0.0, 0.0, 0),
        rule=empty,
        ranked_plan=empty,
    )
    assert "g-" in asked.words


def test_answers() -> None:
    assert [value_model.word(math.log(gain)) for gain in (1.0, 2.0, 0.5, 100.0)] == [
        "g0",
        "g8",
        "g-8",
        "g16",
    ]
    even = [math.log(0.25), math.log(0.75)]
    assert value_model.expected_gain(["g0", "g8"], even) == pytest.approx(0.75 * math.log(2))
    # Any weights: they need not add up to one.
    assert value_model.expected_gain(["g-8", "g8"], [0.0, 0.0]) == 0.0
