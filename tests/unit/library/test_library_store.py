"""Drafts and snapshots: whole or not at all, wherever a writer is killed; nothing is ever lost."""

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from library_helpers import lesson, verification

from kernel_lsp import skillbook
from kernel_lsp.errors import SkillError
from kernel_lsp.library import SkillLibrary, store
from kernel_lsp.records import Standing
from kernel_lsp.skillbook import learned


def filled(data_dir: Path) -> tuple[SkillLibrary, str]:
    library, draft = SkillLibrary(data_dir), lesson()
    assert library.stage(draft) is not None
    return library, draft.draft.name


def loaded(data_dir: Path) -> list[str]:
    places = [place for place in skillbook.folders(data_dir=data_dir) if place.source == "learned"]
    book = skillbook.load(places)
    assert not book.problems
    return [skill.name for skill in book.skills]


def test_a_draft_reaches_no_job_before_it_is_promoted(tmp_path: Path) -> None:
    library, name = filled(tmp_path)
    assert [one.papers.standing for one in library.staged()] == [Standing.STAGED]
    assert loaded(tmp_path) == []
    made = library.promote(name, verification())
    assert (made.number, made.action) == (1, f"promote {name}")
    assert loaded(tmp_path) == [name]
    found = library.find(name)
    assert found is not None and found.papers.verified_on == ("cpu",)
    assert (
        found.skill.recipe == lesson().draft.recipe
        and found.skill.requires == lesson().draft.requires
    )


def test_the_same_draft_is_staged_once(tmp_path: Path) -> None:
    library, name = filled(tmp_path)
    assert library.stage(lesson()) is None
    library.promote(name)
    assert library.stage(lesson()) is None


def test_a_retired_skill_is_kept_and_can_come_back(tmp_path: Path) -> None:
    library, name = filled(tmp_path)
    library.promote(name)
    library.retire(name, "stopped helping")
    assert loaded(tmp_path) == []
    found = library.find(name)
    assert found is not None and (found.papers.standing, found.papers.reason) == (
        Standing.RETIRED,
        "stopped helping",
    )
    with pytest.raises(SkillError, match="retired already"):
        library.retire(name, "again")
    library.promote(name)
    assert loaded(tmp_path) == [name]
    assert [one.number for one in library.history()] == [1, 2, 3]


def test_going_back_makes_a_new_version_that_equals_the_old_one(tmp_path: Path) -> None:
    library, name = filled(tmp_path)
    first = library.promote(name)
    library.stage(lesson("softmax", {"warps": 4}, "fused-row-softmax"))
    other = next(one.papers.name for one in library.staged() if one.papers.name != name)
    library.promote(other)
    made = library.rollback()
    assert (made.number, made.skills) == (3, first.skills)
    assert loaded(tmp_path) == [name]
    assert library.rollback(2).number == 4 and len(loaded(tmp_path)) == 2
    assert library.rollback(0).skills == () and loaded(tmp_path) == []
    with pytest.raises(SkillError, match="no version 99"):
        library.rollback(99)


@pytest.mark.parametrize(
    ("standing", "accepted", "undecided", "then"),
    [
        ("draft", True, False, Standing.VERIFIED),
        ("draft", False, True, Standing.STAGED),
        ("draft", False, False, Standing.REFUSED),
        ("inside", True, False, Standing.VERIFIED),
        ("inside", False, True, Standing.VERIFIED),
        ("inside", False, False, Standing.RETIRED),
        ("retired", True, False, Standing.VERIFIED),
        ("retired", False, True, Standing.RETIRED),
    ],
)
def test_what_follows_from_a_verification(
    tmp_path: Path, standing: str, accepted: bool, undecided: bool, then: Standing
) -> None:
    library, name = filled(tmp_path)
    if standing != "draft":
        library.promote(name)
    if standing == "retired":
        library.retire(name, "before")
    shelved = library.find(name)
    assert shelved is not None
    papers = store.settle(library, shelved, verification(accepted=accepted, undecided=undecided))
    assert papers.standing is then and len(papers.verifications) == 1
    found = library.find(name)
    assert found is not None and found.papers == papers


# --- faults -------------------------------------------------------------------------------


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Run in a fork that kills itself before it reaches for the disk for the ``number``-th time;
    did it?"""
    child = os.fork()
    if child == 0:
        left = [number]

        def counted(do: Callable[..., object]) -> Callable[..., object]:
            def run(*arguments: object, **named: object) -> object:
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return do(*arguments, **named)

            return run

        for name in ("fsync", "mkdir", "rename", "replace", "open"):
            setattr(os, name, counted(getattr(os, name)))
        with contextlib.suppress(BaseException):
            work()
        os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def test_killed_anywhere_while_adding_the_library_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    library, name = filled(tmp_path)
    library.promote(name)
    before = library.current
    library.stage(lesson("softmax", {"warps": 4}, "fused-row-softmax"))
    other = next(one.papers.name for one in library.staged() if one.papers.name != name)
    outcomes, number = [], 0
    while killed_at(number, lambda: SkillLibrary(tmp_path).promote(other)):
        now = library.current
        outcomes.append(now.number)
        assert now == before or (now.number == 2 and now.get(other))
        assert loaded(tmp_path) in ([name], sorted([name, other]))
        if now.number == 2:
            library.rollback(1)
            break
        number += 1
    assert number >= 6, "it was killed at too few places to show anything"
    assert set(outcomes) <= {1, 2} and 1 in outcomes
    made = library.promote(other)
    assert made.get(other) and loaded(tmp_path) == sorted([name, other])
    place = tmp_path / learned.FOLDER / learned.SNAPSHOTS
    assert not list(place.glob(f"{store.UNFINISHED}*"))


def test_killed_anywhere_while_staging_there_is_a_draft_or_none(tmp_path: Path) -> None:
    number = 0
    while killed_at(number, lambda: SkillLibrary(tmp_path).stage(lesson())):
        assert len(SkillLibrary(tmp_path).staged()) in (0, 1)
        number += 1
    assert number >= 3 and len(SkillLibrary(tmp_path).staged()) == 1


def test_a_damaged_newest_version_is_passed_over_and_its_number_is_not_used_again(
    tmp_path: Path,
) -> None:
    library, name = filled(tmp_path)
    library.promote(name)
    library.retire(name, "x")
    (tmp_path / learned.FOLDER / learned.SNAPSHOTS / "000002" / learned.MANIFEST).write_text("{")
    assert library.current.number == 1 and loaded(tmp_path) == [name]
    assert library.retire(name, "y").number == 3


def test_a_disk_that_refuses_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / learned.FOLDER).write_text("a file where a folder should be")
    with pytest.raises(SkillError, match="the skill library cannot be written") as error:
        SkillLibrary(tmp_path).stage(lesson())
    assert error.value.remedy
    assert SkillLibrary(tmp_path).staged() == [] and SkillLibrary(tmp_path).current == store.EMPTY


def test_an_unknown_name_is_said_in_words(tmp_path: Path) -> None:
    library, _ = filled(tmp_path)
    for change in (
        library.promote,
        lambda name: library.retire(name, ""),
        lambda n: library.record(n, verification()),
    ):
        with pytest.raises(SkillError, match="no learned skill is called nobody"):
            change("nobody")


def test_a_refused_draft_is_kept_with_its_reason(tmp_path: Path) -> None:
    papers = SkillLibrary(tmp_path).stage(lesson(), "advises a compiler")
    assert papers is not None and papers.standing is Standing.REFUSED
    again = SkillLibrary(tmp_path).staged()
    assert [replace(one.papers, since="") for one in again] == [replace(papers, since="")]
