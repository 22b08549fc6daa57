"""What journals, archives and tables become, what is left out, and that nothing leaves without
permission."""

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from trainer_data_helpers import (
    FUSE,
    KEY,
    REFERENCE,
    TILE,
    happened,
    older,
    proposal,
    save,
    searched,
)

from kernel_lsp import wire
from kernel_lsp.errors import ArchiveError, ConfigError, JournalError
from kernel_lsp.journal.store import Journal
from trainer.data import corpora, reading
from trainer.data.archives import UNFINISHED
from trainer.data.reading import CHANGED, REFUSED, TWICE, UNASKED, UNREADABLE, Grant, last
from trainer.records import Agent, Corpus, Human, Trajectory, TrajectorySource, TurnStatus
from trainer.tasks import task_suites


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def read(*journals: Path, own: bool = False, **more: Any) -> Corpus:
    return corpora.read(journals=journals, grant=Grant(own=own), **more)


# --- journals -------------------------------------------------------------------------------------


def test_a_logged_chain_becomes_one_trajectory_with_what_its_user_did(path: Path) -> None:
    with Journal.open(path) as journal:
        save(journal, proposal("a", 1.2))
        save(journal, proposal("bb", 1.8, steps=(FUSE, TILE), parent="c-a"))
        save(journal, proposal("ccc", None, status="runtime_error", steps=(TILE,)))
        happened(journal, "bb", "offered", "chosen", "accepted", "kept")
    corpus = read(path)
    (one,) = corpus.trajectories
    assert (corpus.read, corpus.skipped, one.source, one.human) == (
        3,
        (),
        TrajectorySource.JOURNAL,
        Human.KEPT,
    )
    assert (
        one.family == "matmul>pointwise" and one.versions.torch == "2.13.0" and one.device == "cpu"
    )
    first, second, third = one.turns
    assert [t.number for t in one.turns] == [0, 1, 2] and {t.agent for t in one.turns} == {
        Agent.POLICY
    }
    assert (second.parent, second.step, second.human) == (0, 1, Human.KEPT)
    assert second.parent_outcome == first.outcome and [
        c.arguments["skill"] for c in second.calls
    ] == ["tile"]
    assert second.outcome.speedup is not None and second.outcome.speedup.mid == 1.8
    assert second.outcome.lower_bound == pytest.approx(1.71) and one.best == second
    assert (third.outcome.status, third.outcome.correct, third.step) == (
        TurnStatus.RUNTIME_ERROR,
        False,
        0,
    )
    assert all(turn.messages is None and turn.reply is None for turn in one.turns)
    assert wire.from_json(Trajectory, json.loads(wire.dumps(one))) == one


@pytest.mark.parametrize(
    "kinds, human",
    [
        (["offered"], None),
        (["accepted"], Human.ACCEPTED),
        (["accepted", "kept", "kept_committed"], Human.KEPT),
        (["accepted", "kept", "reverted"], Human.REVERTED),
        (["reverted", "accepted"], Human.ACCEPTED),
        (["offered", "dismissed"], Human.DISMISSED),
        (["accepted", "kept", "modified"], Human.CHANGED),
        (["accepted", "modified", "deleted"], Human.ACCEPTED),
        (["accepted", "modified", "kept"], Human.KEPT),
        (["accepted", "kept", "dismissed"], Human.KEPT),
    ],
)
def test_the_last_thing_that_a_person_did_counts(kinds: list[str], human: Human | None) -> None:
    assert last(kinds) is human


def test_without_consent_nothing_is_read_and_each_row_is_counted(path: Path) -> None:
    with Journal.open(path) as journal:
        save(journal, proposal("a"), training=False)
        save(journal, proposal("bb"), training=False)
        save(journal, proposal("ccc"))
    corpus = read(path, own=True)
    assert corpus.reasons == {REFUSED: 2} and corpus.read == 3
    assert [t.candidate for one in corpus.trajectories for t in one.turns] == ["c-ccc"]


def test_rows_from_before_anybody_was_asked_need_their_owners_word(path: Path) -> None:
    with Journal.open(path) as journal:
        save(journal, proposal("a"))
    older(path)
    before = path.read_bytes()
    assert read(path).reasons == {UNASKED: 1}
    (one,) = read(path, own=True).trajectories
    assert one.permission.because == "journal.db: the exporter says that it is theirs"
    assert path.read_bytes() == before  # neither migrated nor moved


def test_where_source_was_not_kept_no_text_leaves_at_all(path: Path) -> None:
    with Journal.open(path) as journal:
        save(journal, proposal("a", None, status="wrong_result"), keep_source=False)
        save(journal, proposal("bb", steps=()), keep_source=False)
    (one,) = read(path).trajectories
    assert (one.program, one.family, one.task_name) == (
        None,
        None,
        None,
    ) and not one.permission.source
    assert one.turns[0].outcome.complaint == "" and one.turns[1].calls == ()
    told = wire.dumps(one)
    assert KEY not in told and "class Model" not in told and "ada" not in told


def test_secrets_and_paths_are_replaced_where_source_was_kept(path: Path) -> None:
    with Journal.open(path) as journal:
        save(journal, proposal("a", steps=()))
        save(journal, proposal("bb", None, status="wrong_result"))
    (one,) = read(path).trajectories
    told = wire.dumps(one)
    assert KEY not in told and "/home/ada" not in told and one.permission.redacted
    assert (
        one.program is not None
        and "__REDACTED_1__" in one.program
        and ".../weights.pt" in one.program
    )
    assert "torch.relu(self.layer(x)) / (1)/x.shape[0]" in one.program  # a division is no path
    assert "__REDACTED_1__" in one.turns[0].calls[0].arguments["code"]


def test_half_written_rows_cost_only_themselves(path: Path) -> None:
    with Journal.open(path) as journal:
        for name in ("a", "bb", "ccc", "dddd"):
            save(journal, proposal(name))
    with sqlite3.connect(path) as database:
        database.execute("UPDATE proposals SET body = substr(body, 1, 200) WHERE id = 'a'")
        database.execute("UPDATE proposals SET body = '{}' WHERE id = 'bb'")
        database.execute(
            "UPDATE proposals SET body = json_set(body, '$.verdict', 'superb') WHERE id = 'ccc'"
        )
    database.close()
    corpus = read(path)
    assert corpus.reasons == {UNREADABLE: 3}
    assert corpus.skipped[0].examples == ("a", "bb", "ccc") and len(corpus.trajectories) == 1


def test_a_journal_of_a_newer_kernel_lsp_is_counted_and_left_alone(path: Path) -> None:
    with Journal.open(path) as journal:
        save(journal, proposal("a"))
        save(journal, proposal("bb"))
    with sqlite3.connect(path) as database:
        database.execute("UPDATE schema_version SET version = 99")
    database.close()
    assert read(path).reasons == {"the journal was written by a newer kernel-lsp": 2}


def test_what_is_no_journal_is_an_error_with_a_way_out(path: Path, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal"):
        read(path)
    path.write_bytes(b"shopping list " * 100)
    with pytest.raises(JournalError, match="cannot be read"):
        read(path)
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE x (y)").connection.close()
    with pytest.raises(JournalError, match="is no journal"):
        read(tmp_path / "other.db")


def test_the_same_rows_from_two_journals_count_once(path: Path, tmp_path: Path) -> None:
    with Journal.open(path) as journal:
        save(journal, proposal("a"))
    shutil.copy(path, tmp_path / "copy.db")
    with Journal.open(tmp_path / "copy.db") as journal:
        happened(journal, "a", "accepted", "reverted")
    corpus = read(path, tmp_path / "copy.db")
    assert corpus.reasons == {TWICE: 1}
    assert [one.human for one in corpus.trajectories] == [Human.REVERTED]


def test_a_proposal_for_a_suites_file_as_it_was_before_is_left_out(
    path: Path, tmp_path: Path
) -> None:
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "net.py").write_text(REFERENCE)
    suite = task_suites.load(tmp_path / "suite")
    now = suite.tasks[0].fingerprint
    with Journal.open(path) as journal:
        save(journal, proposal("a", fingerprint=now), reference=None)
        save(journal, proposal("bb", fingerprint="something else"))
        save(journal, proposal("ccc", fingerprint="something else"), path="elsewhere.py")
    corpus = read(path, suites=[suite])
    assert corpus.reasons == {CHANGED: 1}
    mine = next(one for one in corpus.trajectories if one.turns[0].candidate == "c-a")
    assert mine.task == suite.tasks[0].id and mine.family == suite.tasks[0].family


# --- archives -------------------------------------------------------------------------------------


def archive(path: Path, **more: Any) -> Corpus:
    return corpora.read(archives=[path], grant=Grant(own=True), **more)


def test_a_rollout_keeps_its_turns_agents_prompts_and_tokens(tmp_path: Path) -> None:
    name = searched(tmp_path / "s.db")
    corpus = archive(tmp_path / "s.db")
    assert corpus.read == 6 and corpus.reasons == {UNFINISHED: 1}
    rollout, tree = sorted(corpus.trajectories, key=lambda one: one.rollout)
    assert (rollout.rollout, tree.rollout) == (f"{name}/rollout0", f"{name}/tree0")
    assert rollout.scheme == "fuse" and tree.scheme is None and rollout.task == tree.task
    assert [(t.agent.value, t.step, t.parent) for t in rollout.turns] == [
        ("selection", 0, None), ("policy", 0, None), ("policy", 0, None), ("policy", 1, 2),
        ("policy", 1, 2),
        ("summary", 2, None),
    ]  # fmt: skip
    repair, first, second, third = rollout.policy_turns
    assert (repair.outcome.status, repair.problems) == (
        TurnStatus.REFUSED,
        ("reply: the reply calls no tool (call)",),
    )
    assert first.outcome.correct and first.skills == ("fuse",) and first.reply == "first"
    assert (second.outcome.status, second.outcome.complaint) == (TurnStatus.REFUSED, "no such site")
    assert (
        third.parent_outcome == first.outcome
        and third.steps == (FUSE, TILE)
        and rollout.best == third
    )
    assert first.messages is not None and "__REDACTED" in first.messages[1].text
    assert first.reply_ids == first.logprobs is None  # they could spell out what was hidden
    assert [(t.step, t.parent, t.messages) for t in tree.turns] == [(0, None, None), (1, 0, None)]
    assert (
        tree.turns[1].outcome.status is TurnStatus.WRONG_RESULT
        and tree.turns[1].calls[0].arguments["skill"] == "tile"
    )


def test_tokens_stay_where_nothing_was_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched(tmp_path / "s.db")
    monkeypatch.setattr(reading.Redaction, "hide", lambda self, text: text)
    rollout = next(one for one in archive(tmp_path / "s.db").trajectories if one.scheme)
    assert rollout.turns[2].reply_ids == (5, 6, 7) and rollout.turns[2].logprobs == (
        -0.1,
        -0.1,
        -0.1,
    )


def test_an_archive_needs_consent_from_its_journal_or_its_owner(tmp_path: Path) -> None:
    searched(tmp_path / "s.db")
    corpus = corpora.read(archives=[tmp_path / "s.db"])
    assert corpus.trajectories == () and corpus.reasons == {UNASKED: 5, UNFINISHED: 1}


@pytest.mark.parametrize("keep_source", [True, False])
def test_a_search_in_journal_and_archive_is_told_once_from_both(
    tmp_path: Path, path: Path, keep_source: bool
) -> None:
    name = searched(tmp_path / "s.db")
    with Journal.open(path) as journal:
        save(journal, proposal("three", 2.0, search=f"{name}#3"), keep_source=keep_source)
        happened(journal, "three", "accepted", "kept")
    corpus = corpora.read(journals=[path], archives=[tmp_path / "s.db"])
    assert {one.source for one in corpus.trajectories} == {TrajectorySource.ARCHIVE}
    assert sum("complete in its search" in s.reason for s in corpus.skipped) == 1
    rollout = next(one for one in corpus.trajectories if one.scheme)
    assert rollout.human is Human.KEPT and [t.number for t in rollout.turns if t.human] == [4]
    assert rollout.permission.source is keep_source
    assert (rollout.program is None) is (rollout.turns[2].messages is None) is (not keep_source)


def test_a_no_in_the_journal_holds_for_the_archive_whoever_exports(
    tmp_path: Path, path: Path
) -> None:
    name = searched(tmp_path / "s.db")
    with Journal.open(path) as journal:
        save(journal, proposal("one", search=f"{name}#1"), training=False)
        save(journal, proposal("three", search=f"{name}#3"))
    corpus = corpora.read(journals=[path], archives=[tmp_path / "s.db"], grant=Grant(own=True))
    assert corpus.reasons[REFUSED] == 1 + 5
    assert {one.source for one in corpus.trajectories} == {TrajectorySource.JOURNAL}


def test_damaged_rows_of_an_archive_cost_only_themselves(tmp_path: Path) -> None:
    searched(tmp_path / "s.db")
    with sqlite3.connect(tmp_path / "s.db") as database:
        database.execute("UPDATE attempts SET body = substr(body, 1, 99) WHERE number = 0")
        database.execute("UPDATE exchanges SET body = '[]' WHERE number = 2")
    database.close()
    corpus = archive(tmp_path / "s.db")
    assert corpus.reasons == {
        UNREADABLE: 1, UNFINISHED: 1, "a prompt or reply cannot be read: its attempt is "
                                      "left out": 1,
    }  # fmt: skip
    assert sorted(len(one.turns) for one in corpus.trajectories) == [1, 5]


def test_archives_of_another_schema_and_other_files(tmp_path: Path) -> None:
    searched(tmp_path / "s.db")
    shutil.copy(tmp_path / "s.db", tmp_path / "t.db")
    twice = corpora.read(archives=[tmp_path / "s.db", tmp_path / "t.db"], grant=Grant(own=True))
    assert twice.reasons[TWICE] == 2 and len(twice.trajectories) == 2
    with sqlite3.connect(tmp_path / "s.db") as database:
        database.execute("PRAGMA user_version = 7")
    database.close()
    assert archive(tmp_path / "s.db").reasons == {
        "the archive has schema 7, and this kernel-lsp reads 1": 6
    }
    (tmp_path / "list").write_text("milk")
    for name in ("list", "nothing"):
        with pytest.raises(ArchiveError):
            archive(tmp_path / name)


# --- tables ---------------------------------------------------------------------------------------


def table(tmp_path: Path, **tasks_: Any) -> Path:
    path = tmp_path / "table.json"
    about = {"device": "cuda", "device_name": "NVIDIA H200", "versions": {"torch": "2.11"}}
    path.write_text(
        json.dumps({"schema_version": 1, "kind": "evaluations", **about, "tasks": tasks_})
    )
    return path


ROWS = [
    {"steps": [wire.to_json(TILE)], "status": "passed", "candidate": "x", "ms": {"candidate": 0.5},
     "speedups": {"eager": {"low": 1.1, "mid": 1.2, "high": 1.3, "confidence": 0.95}}},
    {"steps": [], "status": "wrong_result", "detail": "values differ"},
    {"steps": [], "status": "splendid"},
]  # fmt: skip


def test_recorded_evaluations_are_used_only_for_the_task_that_was_measured(tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    for name in ("same", "changed", "unhashed"):
        (tmp_path / "suite" / f"{name}.py").write_text(REFERENCE.replace("64", str(64 + len(name))))
    suite = task_suites.load(tmp_path / "suite")
    right = task_suites.digest(suite.by_name["same"].source)
    path = table(
        tmp_path,
        same={"reference": right, "baseline_ms": {"eager": 0.6}, "rows": ROWS},
        changed={"reference": "0" * 64, "rows": ROWS},
        unhashed={"rows": ROWS[:1]},
        unknown={"rows": ROWS},
    )
    corpus = corpora.read(tables=[path], suites=[suite])
    (one,) = corpus.trajectories
    assert corpus.read == 10 and sum(corpus.reasons.values()) == 8 and corpus.reasons[CHANGED] == 3
    assert corpus.reasons[UNREADABLE] == 1
    good, bad = one.turns
    assert (good.outcome.lower_bound, good.outcome.candidate_ms, good.outcome.baseline_ms) == (
        1.1,
        0.5,
        {"eager": 0.6},
    )
    assert good.calls[0].arguments == {"skill": "tile", "site": "linear", "parameters": {"B": 64}}
    assert (
        bad.outcome.correct is False
        and one.device_name == "NVIDIA H200"
        and one.task == suite.by_name["same"].id
    )
    loose = corpora.read(tables=[path], suites=[suite], grant=Grant(unchanged=True))
    assert {t.task_name for t in loose.trajectories} == {"same", "unhashed"} and loose.reasons[
        CHANGED
    ] == 3


def test_the_forms_that_benchmarks_write_are_read(tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    for name in ("searched", "space"):
        (tmp_path / "suite" / f"{name}.py").write_text(REFERENCE.replace("64", str(64 + len(name))))
    interval = {"low": 1.1, "mid": 1.2, "high": 1.3}
    path = table(
        tmp_path,
        **{
            "searched.py": {
                "speedups": {"eager": interval, "compile": interval},
                "ms": {"eager": 2.0, "candidate": 1.5},
                "offered": {"steps": [wire.to_json(FUSE)], "proposer": "plan/2"},
                "rejected": [{"steps": [], "status": "runtime_error", "detail": "", "speedups": {}}],
            },
            "space": {
                "steps": [wire.to_json(TILE)], "original_ms": 3.0,
                "axes": [{"step": 0, "skill": "tile", "site": "linear", "name": "B", "choices": [32, 64]}],
                "combinations": [[[0], "p", 1.5, ""], [[1], "q", None, "values differ"]],
            },
        },
    )  # fmt: skip
    corpus = corpora.read(
        tables=[path], suites=[task_suites.load(tmp_path / "suite")], grant=Grant(unchanged=True)
    )
    by_name = {one.task_name: one for one in corpus.trajectories}
    assert [t.outcome.correct for t in by_name["searched"].turns] == [False, True]
    assert by_name["searched"].best is not None and by_name["searched"].best.outcome.complete
    fast, wrong = by_name["space"].turns
    assert fast.steps[0].parameters == {"B": 32} and fast.outcome.baseline_ms == {"eager": 3.0}
    assert fast.outcome.speedups == {} and wrong.outcome.status is TurnStatus.WRONG_RESULT


@pytest.mark.parametrize("text", ["", "[]", '{"tasks": 3}', "{"])
def test_what_is_no_table_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match="no table"):
        corpora.read(tables=[tmp_path / "x.json"])
