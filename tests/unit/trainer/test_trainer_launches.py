"""Measured launches of kernels as rows, what is looked up in them, and a rehearsal of the
training."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from launch_helpers import VIEW, kernel, plan

from kernel_lsp import wire
from kernel_lsp.agents.prompt_encoding.launching import LaunchQuestion
from kernel_lsp.errors import ConfigError
from kernel_lsp.models import manifest
from trainer.policies import launch_policy, launch_report, launches


def test_what_fails_counts_as_half_of_the_slowest() -> None:
    one = kernel("k", plan(8, 2.0), plan(1, 0.5), plan(2, None))
    assert launch_policy.values(one) == pytest.approx([math.log(2), -math.log(2), -2 * math.log(2)])
    assert launch_policy.values(kernel("k", plan(8, 2.0), plan(2, None)))[1] == pytest.approx(
        -math.log(2)
    )


def test_each_plan_is_asked_about_over_the_kernel_and_over_other_plans() -> None:
    one = kernel("k", plan(8, 2.0), plan(1, 0.5))
    rows = list(launch_policy.questions(one, 6))
    assert [(order, place) for order, place, _, _ in rows] == [
        (o, p) for o in range(3) for p in range(2)
    ]
    gains = {(order, place): gain for order, place, gain, _ in rows}
    assert gains[0, 0] == pytest.approx(math.log(2)) and gains[0, 1] == pytest.approx(-math.log(2))
    assert sorted(round(gain / math.log(2), 3) for gain in gains.values()) == [-2, -1, 0, 0, 1, 2]
    asked = LaunchQuestion(before=VIEW, after=one.plans[0].view, capability="sm_90")
    assert rows[0][3] == asked.tokens


def test_the_first_suggestion_is_looked_up_beside_the_best() -> None:
    one = kernel(
        "k", plan(8, 0.5, rule=True), plan(1, 2.0, rule=True), plan(2, 1.95), plan(4, None), first=1
    )
    assert launch_report.rule(one).order == (1, 0, 2, 3)
    assert launch_report.rule(one).first == 0.0 and launch_report.rule(one).needed == 1
    worst = launch_report.policy(one, {0: 0.9, 1: 0.1, 2: 0.2, 3: 1.0})
    assert worst.order == (3, 0, 2, 1)
    assert worst.first == pytest.approx(-math.log(2))  # it fails, so the kernel stays as it is
    assert worst.needed == 3  # 1.95 is within 5 % of 2
    slow = kernel("k", plan(8, 0.5), plan(1, 0.8))
    # as it is would be better
    assert launch_report.rule(slow).first == pytest.approx(math.log(0.5))
    assert launch_report.comparable(
        [one, replace(one, first=None), kernel("k", plan(8, None))]
    ) == [0]


def test_a_file_is_read_as_it_was_written_and_others_are_refused(tmp_path: Path) -> None:
    one, path = kernel("k", plan(8, 2.0), plan(1, None)), tmp_path / "launches.json.xz"
    launches.save([wire.to_json(one)], path)
    assert launches.load(path) == [one]
    path.write_bytes(b"no such file")
    with pytest.raises(ConfigError, match="holds no measured launches"):
        launches.load(path)


def test_a_rehearsal_ends_with_a_policy_for_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, made = random.Random(1), []
    for number in range(12):
        plans = [
            plan(warps, draw.choice((0.5, 1.0, 2.0)), rule=warps == 8) for warps in (8, 1, 2, 4)
        ]
        made.append(wire.to_json(kernel(f"k{number}", *plans, family=f"f{number % 6}")))
    launches.save(made, tmp_path / "launches.json.xz")
    command = ["launch_policy", "--launches", str(tmp_path / "launches.json.xz"), "--tiny"]
    monkeypatch.setattr("sys.argv", [*command, "--out", str(tmp_path / "out"), "--limit-s", "1"])
    assert launch_policy.main() == 0
    told = json.loads((tmp_path / "out" / "launch-policy.json").read_text())
    held_out = json.loads((tmp_path / "out" / "held-out.json").read_text())
    assert {int(name[1:]) % 6 for name in held_out} == {
        int(family[1:]) for family in told["held_out"]
    }
    seen = manifest.read(tmp_path / "out" / "launch-small")
    assert (seen.targets, seen.weighs) == (("kernel",), True)
    assert seen.held_out is not None and seen.held_out.tasks == len(held_out)
    assert seen.held_out.device == "a rehearsal on a CPU"
