"""Verdicts survive the round trip; what cannot be read is a miss."""

import os
from pathlib import Path

import pytest

from kernel_lsp import cache as cache_module
from kernel_lsp.cache import Cache
from kernel_lsp.records import Outcome, SkillMatch

OUTCOME = Outcome(
    qualname="Model", matches=(SkillMatch(skill="s", score=1.5, words=("sum",)),), note="why"
)


def test_an_outcome_comes_back_equal(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "deep" / "folder")
    cache.put("k", OUTCOME)
    assert cache.get("k") == OUTCOME


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"qualname": 3}', "\x00"])
def test_an_unreadable_file_is_a_miss(tmp_path: Path, broken: str) -> None:
    (tmp_path / "k.json").write_text(broken)
    assert Cache(tmp_path).get("k") is None


def test_a_folder_that_cannot_be_written_only_forgets(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file")
    cache.put("k", OUTCOME)
    assert cache.get("k") is None


def test_the_key_depends_on_every_part_and_on_nothing_else() -> None:
    assert Cache.key(a=1, b=OUTCOME) == Cache.key(b=OUTCOME, a=1)
    assert Cache.key(a=1) != Cache.key(a=2)
    assert Cache.key(a=1) != Cache.key(b=1)


def test_the_oldest_verdicts_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_FILES", 2)
    cache = Cache(tmp_path)
    for age, key in enumerate("abc"):
        cache.put(key, OUTCOME)
        if (tmp_path / f"{key}.json").exists():
            os.utime(tmp_path / f"{key}.json", (age, age))
    cache.put("d", OUTCOME)
    assert cache.get("a") is None
    assert cache.get("d") == OUTCOME
