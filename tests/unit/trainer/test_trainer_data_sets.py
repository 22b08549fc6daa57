"""Which turns are examples, how a data set is dealt and written, and the command that makes it."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_data_helpers import FUSE, KEY, REFERENCE, TILE, happened, proposal, save, searched

from kernel_lsp import wire
from kernel_lsp.errors import ConfigError
from kernel_lsp.journal.store import Journal
from kernel_lsp.records import Interval, Step, ToolCall
from trainer import export
from trainer.data import corpora, datasets, parquet
from trainer.data.datasets import DatasetRow, ExampleChoice, gain, quotas, unfit
from trainer.data.reading import Grant
from trainer.records import (
    Agent,
    Human,
    ModelTurn,
    Permission,
    Trajectory,
    TrajectorySource,
    TurnOutcome,
    TurnStatus,
)
from trainer.tasks.likeness import Likeness, mark
from trainer.tasks.task_suites import DataPart, FamilySplit

OURS = Permission(training=True, source=True, redacted=True, because="test")


def outcome(speed: float | None = 1.5, correct: bool | None = True, **more: Any) -> TurnOutcome:
    found = (
        {} if speed is None else {"eager": Interval(low=speed * 0.9, mid=speed, high=speed * 1.1)}
    )
    status = (
        TurnStatus.PASSED
        if correct
        else TurnStatus.NOT_RUN
        if correct is None
        else TurnStatus.WRONG_RESULT
    )
    return TurnOutcome(status=status, correct=correct, speedups=found, **more)


def turn(found: TurnOutcome | None = None, number: int = 0, **more: Any) -> ModelTurn:
    call = ToolCall(
        name="apply_skill", arguments={"skill": "fuse", "site": "s", "parameters": {"B": number}}
    )
    fields = {
        "agent": Agent.POLICY,
        "calls": (call,),
        "outcome": found or outcome(),
        "number": number,
    } | more
    return ModelTurn(**fields)


def trajectory(*turns: ModelTurn, name: str = "t", **more: Any) -> Trajectory:
    fields = {
        "id": name, "task": name, "family": "matmul", "device": "cpu",
        "source": TrajectorySource.ARCHIVE,
        "origin": name, "rollout": name, "turns": turns, "permission": OURS,
        "program": REFERENCE.replace("sk-live", "x"),
    }  # fmt: skip
    return Trajectory(**(fields | more))


# --- the dual filter ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step, mine, parent, kept",
    [
        (0, outcome(0.5), None, None),  # slow but correct: kept, as Kernel-Smith does
        (0, outcome(None, correct=False), None, "first step: not correct"),
        (0, outcome(None, correct=None), None, "first step: it was not judged"),
        (1, outcome(1.6), outcome(1.5), None),
        (1, outcome(1.5), outcome(1.5), "later step: not faster than its parent"),
        (1, outcome(1.4), outcome(1.5), "later step: not faster than its parent"),
        (1, outcome(1.1), outcome(None, correct=False), None),
        (1, outcome(None, correct=False), outcome(1.5), "later step: not correct"),
        (1, outcome(1.6), None, "later step: its parent's outcome is unknown"),
        (
            1,
            outcome(None),
            outcome(None),
            "later step: its speed cannot be compared with its parent's",
        ),
    ],
)
def test_the_dual_filter(
    step: int, mine: TurnOutcome, parent: TurnOutcome | None, kept: str | None
) -> None:
    made = turn(mine, step=step, parent_outcome=parent)
    assert unfit(trajectory(made), made) == kept


def test_gain_over_a_parent_is_the_smallest_over_what_both_were_timed_against() -> None:
    def speeds(**mids: float) -> TurnOutcome:
        found = {name: Interval(low=mid, mid=mid, high=mid) for name, mid in mids.items()}
        return TurnOutcome(status=TurnStatus.PASSED, correct=True, speedups=found)

    assert gain(speeds(eager=3.0, compile=1.2), speeds(eager=2.0, compile=1.0)) == pytest.approx(
        1.2
    )
    assert gain(speeds(eager=3.0), speeds(eager=2.0, compile=1.0)) == pytest.approx(1.5)
    assert gain(outcome(None, candidate_ms=2.0), outcome(None, candidate_ms=3.0)) == pytest.approx(
        1.5
    )
    assert gain(outcome(), outcome(None, correct=False)) == math.inf
    assert gain(speeds(eager=3.0), speeds(compile=2.0)) is None


@pytest.mark.parametrize("human", [Human.REVERTED, Human.DISMISSED])
def test_what_a_person_took_back_is_not_imitated(human: Human) -> None:
    made = turn(human=human)
    assert unfit(trajectory(made), made) == "its user took it back or said no"
    assert unfit(trajectory(made), turn(human=Human.KEPT)) is None


def test_selections_and_summaries_are_examples_when_they_paid() -> None:
    nothing = TurnOutcome(status=TurnStatus.NONE)
    chosen = turn(nothing, agent=Agent.SELECTION)
    assert unfit(trajectory(chosen, turn(outcome(1.5), 1)), chosen) is None
    # Its lower bound is 0.945.
    assert unfit(trajectory(chosen, turn(outcome(1.05), 1)), chosen) is not None
    wrote = ToolCall(name="update_skill_library", arguments={"new_skills": [{"name": "x"}]})
    assert unfit(trajectory(), turn(nothing, agent=Agent.SUMMARY, calls=(wrote,))) is None
    empty = ToolCall(name="update_skill_library", arguments={"new_skills": []})
    assert "nothing was written" in str(
        unfit(trajectory(), turn(nothing, agent=Agent.SUMMARY, calls=(empty,)))
    )
    assert "no valid call" in str(unfit(trajectory(), turn(problems=("bad",))))
    assert "no call" in str(unfit(trajectory(), turn(calls=())))


def test_the_same_answer_to_the_same_question_counts_once() -> None:
    first, second = trajectory(turn(), name="a", task="t"), trajectory(turn(), name="b", task="t")
    rows = datasets.rows(
        [first, second, trajectory(turn(), name="c")], DataPart.TRAIN, ExampleChoice()
    )
    assert [row.left_out for row in rows] == [None, "the same answer to the same question", None]


# --- diversity and mix ----------------------------------------------------------------------------


def test_a_cluster_is_cut_to_its_size_and_its_tasks_take_turns() -> None:
    many = [
        trajectory(*(turn(outcome(1 + n / 10), n) for n in range(6)), name="often"),
        trajectory(turn(outcome(1.1), 9), name="seldom"),
        trajectory(turn(outcome(1.1)), name="else", program="", family="conv>pool"),
    ]
    rows = datasets.rows(many, DataPart.TRAIN, ExampleChoice(per_cluster=3))
    kept = [(row.trajectory.id, row.turn.number) for row in rows if row.example]
    assert kept == [("often", 4), ("often", 5), ("seldom", 9), ("else", 0)]
    assert sum(row.left_out == "its cluster has enough examples" for row in rows) == 4


def test_clusters_do_not_depend_on_the_order_of_the_sources() -> None:
    rows = [
        DatasetRow(
            trajectory=trajectory(turn(), name=str(n), family=f, program=None),
            turn=turn(),
            part=DataPart.TRAIN,
        )
        for n, f in enumerate(["a", "b", "a", "c", "b", "a"])
    ]
    names = {
        frozenset(rows[place].trajectory.id for place in found) for found in datasets.clusters(rows)
    }
    turned = rows[::-1]
    again = {
        frozenset(turned[place].trajectory.id for place in found)
        for found in datasets.clusters(turned)
    }
    assert names == again == {frozenset("025"), frozenset("14"), frozenset("3")}
    assert np.linalg.norm(datasets.features(rows[0])) == pytest.approx(1.0)


@given(
    counts=st.fixed_dictionaries({agent: st.integers(0, 500) for agent in datasets.AGENTS}),
    shares=st.fixed_dictionaries(
        {agent: st.sampled_from([0.0, 0.1, 0.3, 1.0]) for agent in datasets.AGENTS}
    ),
)
def test_quotas_keep_the_shares_and_repeat_nothing(
    counts: dict[Agent, int], shares: dict[Agent, float]
) -> None:
    found = quotas(counts, shares)
    assert all(0 <= found[agent] <= counts[agent] for agent in found)
    used = [agent for agent in datasets.AGENTS if counts[agent] and shares[agent]]
    for one in used:
        for other in used:
            assert abs(found[one] * shares[other] - found[other] * shares[one]) <= 1.0
    if used:  # one of them is used up
        assert any(found[agent] == counts[agent] for agent in used)


def test_a_mix_leaves_out_of_what_there_is_too_much() -> None:
    wrote = ToolCall(name="update_skill_library", arguments={"new_skills": [{"name": "x"}]})
    summary = turn(TurnOutcome(status=TurnStatus.NONE), 99, agent=Agent.SUMMARY, calls=(wrote,))
    many = [trajectory(*(turn(number=n) for n in range(9)), summary)]
    mix = {Agent.POLICY: 0.8, Agent.SUMMARY: 0.2}
    rows = datasets.rows(many, DataPart.TRAIN, ExampleChoice(mix=mix))
    assert sum(r.example and r.turn.agent is Agent.POLICY for r in rows) == 4
    assert {r.left_out for r in rows} == {None, "the mix has enough of policy"}


# --- dealing --------------------------------------------------------------------------------------


def test_what_could_leak_is_left_out_and_counted() -> None:
    unknown = trajectory(turn(), name="a", family=None, program=None)
    copied = trajectory(turn(), name="b", program=REFERENCE.replace("layer", "renamed"))
    hidden = trajectory(turn(), name="c", program=None)
    good = trajectory(turn(), name="d", program=REFERENCE.replace("relu", "cumsum"), family="conv")
    found = mark(REFERENCE)
    assert found is not None
    parts, left = datasets.deal_parts(
        [unknown, copied, hidden, good], FamilySplit(), Likeness([found])
    )
    assert sorted(one.id for mine in parts.values() for one in mine) == ["d"]
    assert sum(one.count for one in left) == 3 and len(left) == 3


@given(
    families=st.lists(st.sampled_from(["a", "b>c", "net:x", "d>e>f", "g"]), max_size=30),
    seed=st.integers(0, 20),
)
def test_no_family_is_in_two_parts(families: list[str], seed: int) -> None:
    many = [trajectory(turn(), name=str(n), family=family) for n, family in enumerate(families)]
    parts, _ = datasets.deal_parts(many, FamilySplit(seed=seed, test=0.4, validation=0.3))
    where = [{one.family for one in mine} for mine in parts.values()]
    assert sum(map(len, where)) == len(set(families)) and sum(map(len, parts.values())) == len(
        families
    )


# --- files ----------------------------------------------------------------------------------------


def written(folder: Path, *made: Trajectory, **more: Any) -> dict[str, Any]:
    rows = datasets.rows(made, DataPart.TRAIN, ExampleChoice(**more))
    return parquet.write(folder, {DataPart.TRAIN: rows}, {"counts": {}})


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    full = turn(
        outcome(1.5, candidate_ms=0.5, baseline_ms={"eager": 0.75}), messages=(), reply="r",
        prompt_ids=(1, 2), reply_ids=(3,), logprobs=(-0.5,), steps=(FUSE,), human=Human.KEPT,
        skills=("a", "b"), seconds=1.5,
    )  # fmt: skip
    later = turn(outcome(1.7), 1, parent=0, parent_outcome=full.outcome, step=1, steps=(FUSE, TILE))
    bad = turn(outcome(None, correct=False), 2)
    made = trajectory(full, later, bad, human=Human.KEPT)
    manifest = written(tmp_path / "d", made)
    assert manifest["files"]["turns-train.parquet"]["rows"] == 3
    assert list(parquet.trajectories(tmp_path / "d", DataPart.TRAIN)) == [made]
    first, second, third = parquet.turns(tmp_path / "d", DataPart.TRAIN)
    assert (first["speedup_low"], first["speedup_mid"], first["baseline_ms"]) == (
        1.35,
        1.5,
        {"eager": 0.75},
    )
    assert (first["prompt_ids"], first["reply_ids"], first["logprobs"]) == ([1, 2], [3], [-0.5])
    assert (
        first["messages"] == []
        and first["human"] == "kept"
        and first["calls"][0]["name"] == "apply_skill"
    )
    assert [wire.from_json(Step, step) for step in second["steps_before"]] == [FUSE]
    assert (
        second["parent_outcome"]["speedups"]["eager"]["mid"] == 1.5 and second["messages"] is None
    )
    assert (third["example"], third["left_out"]) == (False, "first step: not correct")
    assert [
        row["number"] for row in parquet.turns(tmp_path / "d", DataPart.TRAIN, examples=True)
    ] == [0, 1]
    assert {row["allowed_because"] for row in (first, second, third)} == {"test"} and first[
        "redacted"
    ]


@pytest.mark.parametrize(
    "permission",
    [replace(OURS, training=False), replace(OURS, source=False), replace(OURS, redacted=False)],
)
def test_what_was_not_allowed_is_never_written(tmp_path: Path, permission: Permission) -> None:
    with pytest.raises(ConfigError, match="more than was allowed"):
        written(tmp_path / "d", trajectory(turn(), permission=permission))
    assert not (tmp_path / "d" / parquet.MANIFEST).exists()


def test_a_data_set_that_is_unfinished_damaged_or_of_another_schema_is_refused(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "d"
    written(folder, trajectory(turn()))
    with pytest.raises(ConfigError, match="is not empty"):
        written(folder, trajectory(turn()))
    file = folder / "turns-train.parquet"
    file.write_bytes(file.read_bytes()[:-9] + b"something")
    with pytest.raises(ConfigError, match=r"is not what dataset\.json says"):
        list(parquet.turns(folder, DataPart.TRAIN))
    told = json.loads((folder / parquet.MANIFEST).read_text())
    (folder / parquet.MANIFEST).write_text(json.dumps(told | {"schema_version": 9}))
    with pytest.raises(ConfigError, match="schema 9"):
        list(parquet.turns(folder, DataPart.TRAIN))
    (folder / parquet.MANIFEST).unlink()
    with pytest.raises(ConfigError, match="no data set"):
        list(parquet.turns(folder, DataPart.TRAIN))


def test_a_full_disk_leaves_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet.pq.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="No space"):
        written(tmp_path / "d", trajectory(turn()))
    assert not (tmp_path / "d" / parquet.MANIFEST).exists()


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """A journal and the archive of a search that is in it, with rows that may not be used among
    them."""
    name = searched(tmp_path / "searches" / "s.db")
    with Journal.open(tmp_path / "journal.db") as journal:
        save(journal, proposal("three", 2.0, search=f"{name}#3"))
        save(journal, proposal("a"), path="other.py", reference=REFERENCE.replace("relu", "cumsum"))
        save(journal, proposal("bb"), training=False)
        save(journal, proposal("ccc"), keep_source=False, path="third.py")
        happened(journal, "three", "accepted", "kept")
    journal_, archives = str(tmp_path / "journal.db"), str(tmp_path / "searches")
    return ["--journal", journal_, "--archive", archives, "--test", "0", "--validation", "0"]


def test_the_command_writes_a_data_set_and_says_what_it_left_out(
    tmp_path: Path, sources: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert export.main([*sources, "--out", str(out), "--json"]) == 0
    told = capsys.readouterr()
    summary = json.loads(told.out)
    assert (
        "journal 1 of 1" in told.err
        and "archive 1 of 1" in told.err
        and "writing train" in told.err
    )
    assert summary["turns"] == 9 == sum(part["turns"] for part in summary["parts"].values())
    assert summary["parts"]["train"]["agents"] == {"policy": 4, "selection": 1, "summary": 1}
    left = {
        one["reason"]: one["count"]
        for key in summary
        if key.endswith("left_out")
        for one in summary[key]
    }
    assert left == {
        "complete in its search's archive, which was read": 1,
        "its user did not allow training on it": 1,
        "begun, and its verdict was never noted": 1,
        "its program was not kept, so its family is unknown and could leak": 1,
    }
    assert (
        sum(one["count"] for one in summary["turns_that_are_no_examples"])
        == 9 - summary["examples"]
    )
    everything = b"".join(file.read_bytes() for file in out.iterdir())
    assert KEY.encode() not in everything and b"/home/ada" not in everything
    kept = [one.human for one in parquet.trajectories(out, DataPart.TRAIN) if one.human]
    assert kept == [Human.KEPT]
    assert parquet.manifest(out)["counts"]["read"] == summary["read"]


def test_the_command_speaks_to_people_too(
    tmp_path: Path, sources: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert export.main([*sources, "--out", out, "--mix", "policy=1", "--per-cluster", "1"]) == 0
    text = capsys.readouterr().out
    assert "9 turns of 3 trajectories" in text and "its user did not allow training on it" in text
    assert export.main([*sources, "--out", out]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_where_nothing_may_be_used_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    searched(tmp_path / "s.db")
    out = tmp_path / "out"
    assert export.main(["--archive", str(tmp_path / "s.db"), "--out", str(out)]) == 1
    assert "none can be used" in capsys.readouterr().out and not out.exists()
    assert export.main(["--archive", str(tmp_path / "s.db"), "--out", str(out), "--own"]) == 0


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--journal", "nowhere.db"], "there is no journal"),
        (["--tasks", "nowhere"], "no folder of tasks"),
        (["--archive", "nowhere.db"], "there is no search archive"),
        (["--test", "0.9", "--validation", "0.1"], "leave nothing"),
        (["--without", "nowhere"], "no folder of tasks"),
    ],
)
def test_options_that_cannot_be_used_are_said_with_a_way_out(
    tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export.main([*arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert said in error and error.startswith("export: ") and "(" in error


@pytest.mark.parametrize("mix", ["policy", "painter=1", "policy=-1", "policy=0", "policy=x"])
def test_a_mix_that_is_none_is_refused(mix: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        export.main(["--out", "x", "--mix", mix])
    assert ended.value.code == 2 and "--mix" in capsys.readouterr().err


def test_families_of_a_held_out_suite_go_to_test(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db") as journal:
        save(journal, proposal("a"))
        save(
            journal,
            proposal("bb"),
            path="b.py",
            reference=REFERENCE.replace("torch.relu", "torch.cumsum"),
        )
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "x.py").write_text(REFERENCE.replace("relu", "tanh").replace("32", "99"))
    out = tmp_path / "out"
    arguments = ["--journal", str(tmp_path / "journal.db"), "--test", "0", "--validation", "0"]
    assert export.main([*arguments, "--held-out", str(tmp_path / "held"), "--out", str(out)]) == 0
    families = {part: {row["family"] for row in parquet.turns(out, part)} for part in DataPart}
    assert families == {
        DataPart.TEST: {"matmul>pointwise"}, DataPart.VALIDATION: set(),
        DataPart.TRAIN: {"matmul>scan>pointwise"},
    }  # fmt: skip


def test_reading_for_a_data_set_needs_no_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys, trainer.export; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert corpora.read(grant=Grant()).trajectories == ()
