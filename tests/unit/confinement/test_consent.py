"""Who allowed workspace code to run."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel_lsp.config import Settings
from kernel_lsp.confinement import layers
from kernel_lsp.confinement.layers import GUARANTEES
from kernel_lsp.consent import (
    MAX_ATTEMPTS,
    ConsentAnswer,
    Consents,
    remote_origin,
    subjects,
    trust,
    trust_remote,
)
from kernel_lsp.errors import ConfigError


def test_nobody_said_anything_is_none(tmp_path: Path) -> None:
    assert Consents(tmp_path).answer("/project") is None


def test_an_answer_is_shared_with_other_editors_and_kept_per_folder(tmp_path: Path) -> None:
    Consents(tmp_path).record("/one", ConsentAnswer.ALLOW)
    Consents(tmp_path).record("/two", ConsentAnswer.NEVER)
    other = Consents(tmp_path)
    assert other.answer("/one") is ConsentAnswer.ALLOW
    assert other.answer("/two") is ConsentAnswer.NEVER
    assert other.answer("/one/deeper") is None
    assert not other.may_ask("/one")


def test_the_setting_comes_before_the_stored_answer(tmp_path: Path) -> None:
    consents = Consents(tmp_path)
    consents.record("/one", ConsentAnswer.NEVER)
    assert consents.answer("/one", setting="always") is ConsentAnswer.ALLOW
    assert consents.answer("/two", setting="never") is ConsentAnswer.NEVER


def test_asking_stops_after_five_attempts_across_editors(tmp_path: Path) -> None:
    for _ in range(MAX_ATTEMPTS):
        editor = Consents(tmp_path)
        assert editor.may_ask("/one")
        editor.count_attempt("/one")
    assert not Consents(tmp_path).may_ask("/one")
    assert Consents(tmp_path).answer("/one") is None


def test_a_damaged_file_means_that_nobody_allowed_anything(tmp_path: Path) -> None:
    trust("/one", tmp_path)
    for damage in (b"{", b"[]", b'{"/one": 3}', b'{"/one": {"answer": "sure"}}', b"\xff"):
        (tmp_path / "consent.json").write_bytes(damage)
        assert Consents(tmp_path).answer("/one") is None


def test_forgetting_asks_again(tmp_path: Path) -> None:
    consents = Consents(tmp_path)
    consents.record("/one", ConsentAnswer.NEVER)
    consents.forget("/one")
    assert Consents(tmp_path).answer("/one") is None
    assert Consents(tmp_path).may_ask("/one")


def test_a_folder_that_cannot_be_written_keeps_the_answer_for_the_session(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    consents = Consents(blocked)
    consents.count_attempt("/one")
    with pytest.raises(ConfigError, match="data_dir"):
        consents.record("/one", ConsentAnswer.ALLOW)
    assert consents.answer("/one") is ConsentAnswer.ALLOW
    assert Consents(blocked).answer("/one") is None


def test_links_to_a_folder_share_its_answer(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    trust(link, tmp_path / "data", ConsentAnswer.ON_REQUEST)
    assert Consents(tmp_path / "data").answer(real) is ConsentAnswer.ON_REQUEST


HERE, THERE = "https://api.example.com", "http://10.0.0.7:8000"


def test_sending_code_away_is_allowed_per_folder_and_origin_and_shared(tmp_path: Path) -> None:
    Consents(tmp_path).allow_remote("/one", HERE)
    other = Consents(tmp_path)
    assert other.allows_remote("/one", HERE)
    assert not other.allows_remote("/one", THERE)
    assert not other.allows_remote("/two", HERE)
    assert not other.allows_remote("/one", "http://api.example.com")
    assert other.answer("/one") is None  # running code is another question


def test_a_refusal_is_remembered_so_that_nobody_is_asked_again(tmp_path: Path) -> None:
    Consents(tmp_path).allow_remote("/one", THERE)
    Consents(tmp_path).forbid_remote("/one", HERE)
    trust("/one", tmp_path)
    other = Consents(tmp_path)
    assert [other.remote_answer("/one", origin) for origin in (HERE, THERE, "http://x")] == [
        False,
        True,
        None,
    ]
    assert other.answer("/one") is ConsentAnswer.ALLOW
    other.allow_remote("/one", HERE)
    assert Consents(tmp_path).allows_remote("/one", HERE)
    other.forget("/one")
    assert Consents(tmp_path).remote_answer("/one", THERE) is None


def test_answers_from_two_editors_at_a_time_are_both_kept(tmp_path: Path) -> None:
    first, second = Consents(tmp_path), Consents(tmp_path)
    first.allow_remote("/one", HERE)
    second.allow_remote("/one", THERE)
    first.count_attempt("/one")
    assert all(Consents(tmp_path).allows_remote("/one", origin) for origin in (HERE, THERE))


@pytest.mark.parametrize(
    "damage", [3, [HERE], {HERE: True}, {HERE: "yes"}, {HERE: None}, {HERE: -1}, {HERE: 0}]
)
def test_a_damaged_leave_to_send_is_none(tmp_path: Path, damage: object) -> None:
    entry = {"answer": "allow", "about": {}, "remote": damage}
    (tmp_path / "consent.json").write_text(json.dumps({str(Path("/one").resolve()): entry}))
    assert not Consents(tmp_path).allows_remote("/one", HERE)
    assert Consents(tmp_path).answer("/one") is ConsentAnswer.ALLOW
    Consents(tmp_path).allow_remote("/one", THERE)
    assert Consents(tmp_path).allows_remote("/one", THERE)


def test_leave_to_send_in_a_folder_that_cannot_be_written_holds_for_the_session(
    tmp_path: Path,
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    consents = Consents(blocked)
    with pytest.raises(ConfigError):
        consents.allow_remote("/one", HERE)
    assert consents.allows_remote("/one", HERE)


@pytest.mark.parametrize(
    ("policy", "endpoint", "expected"),
    [
        ("openai", "https://API.example.com:443/v1", "https://api.example.com"),
        ("openai", "http://127.0.0.1:8000/v1", None),
        ("openai", None, None),
        ("plan", "https://api.example.com", None),
    ],
)
def test_only_a_model_elsewhere_needs_an_answer(
    policy: str, endpoint: str | None, expected: str | None
) -> None:
    assert remote_origin(Settings(policy=policy, endpoint=endpoint)) == expected


def test_the_command_line_allows_and_forbids_a_remote_model(tmp_path: Path) -> None:
    for allowed in (True, False):
        trust_remote("/one", tmp_path, "https://api.example.com", allowed=allowed)
        assert Consents(tmp_path).remote_answer("/one", "https://api.example.com") is allowed
    assert Consents(tmp_path).answer("/one") is None  # another question


def repository(
    folder: Path, remote: str = "https://example.com/one", began: str = "a" * 40
) -> Path:
    (folder / ".git" / "logs").mkdir(parents=True)
    config = f'[core]\n\tfsmonitor = touch /tmp/ran\n[remote "origin"]\n\turl = {remote}\n'
    (folder / ".git" / "config").write_text(config)
    (folder / ".git" / "logs" / "HEAD").write_text(f"{'0' * 40} {began} A <a@b> 1 +0000\tclone\n")
    return folder


def test_another_folder_at_the_same_place_is_asked_about(tmp_path: Path) -> None:
    folder, consents = tmp_path / "project", Consents(tmp_path / "data")
    repository(folder)
    consents.record(folder, ConsentAnswer.ALLOW)
    (folder / "model.py").write_text("edited")
    assert consents.answer(folder) is ConsentAnswer.ALLOW and not consents.may_ask(folder)
    folder.rename(tmp_path / "away")
    repository(folder)
    assert consents.answer(folder) is None and consents.may_ask(folder)
    shutil.rmtree(folder)
    (tmp_path / "away").rename(folder)
    assert consents.answer(folder) is ConsentAnswer.ALLOW


def test_an_inode_that_has_come_again_is_another_folder(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    before = subjects.about(folder)
    folder.rmdir()
    folder.mkdir()
    assert not subjects.same(before, subjects.about(folder))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda git: (git / "config").write_text(
                '[remote "origin"]\nurl = https://example.com/two'
            ),
            "remote",
        ),
        (
            lambda git: (git / "logs" / "HEAD").write_text(f"{'0' * 40} {'b' * 40} x\n"),
            "another clone",
        ),
        (lambda git: shutil.rmtree(git), "no repository any more"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_repository_in_the_same_folder_is_asked_about(
    change: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    folder, consents = repository(tmp_path / "project"), Consents(tmp_path / "data")
    consents.record(folder, ConsentAnswer.ALLOW)
    log = folder / ".git" / "logs" / "HEAD"
    log.write_text(log.read_text() + f"{'a' * 40} {'c' * 40} A <a@b> 2 +0000\tpull\n")
    assert consents.answer(folder) is ConsentAnswer.ALLOW, "a pull is no other repository"
    change(folder / ".git")
    assert consents.answer(folder) is None, words


def test_a_no_stays_a_no_whatever_comes_to_lie_there(tmp_path: Path) -> None:
    consents = Consents(tmp_path / "data")
    consents.record(tmp_path / "project", ConsentAnswer.NEVER)
    repository(tmp_path / "project")
    assert consents.answer(tmp_path / "project") is ConsentAnswer.NEVER


def test_a_folder_of_downloads_covers_what_lay_there(tmp_path: Path) -> None:
    folder, consents = tmp_path / "Downloads", Consents(tmp_path / "data")
    (folder / "first").mkdir(parents=True)
    (folder / "model.py").write_text("one")
    assert "not what comes to lie there later" in subjects.words(folder)
    consents.record(folder, ConsentAnswer.ALLOW)
    (folder / "model.py").unlink()
    (folder / "model.py").write_text("saved again")
    for path in ("first/deep/model.py", "model.py", folder / "model.py", tmp_path / "elsewhere.py"):
        assert consents.answer(folder, path=path) is ConsentAnswer.ALLOW
    (folder / "second").mkdir()
    assert consents.answer(folder, path="second/model.py") is None
    assert consents.answer(folder, path=folder / "fresh.py") is None and consents.may_ask(
        folder, path="fresh.py"
    )
    (folder / "first").rmdir()
    (folder / "first").mkdir()
    assert consents.answer(folder, path="first/model.py") is None, "another folder of that name"


def test_a_folder_of_too_many_files_covers_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "MAX_ENTRIES", 2)
    for name in "abc":
        (tmp_path / f"{name}.py").touch()
    subject = subjects.about(tmp_path)
    assert not subjects.covers(subject, tmp_path, tmp_path / "later.py")
    assert "nothing" in subjects.words(tmp_path)


def test_a_project_covers_what_is_added_to_it(tmp_path: Path) -> None:
    folder, consents = tmp_path / "project", Consents(tmp_path / "data")
    folder.mkdir()
    (folder / "pyproject.toml").write_text("")
    consents.record(folder, ConsentAnswer.ALLOW)
    (folder / "new").mkdir()
    assert consents.answer(folder, path="new/model.py") is ConsentAnswer.ALLOW
    assert "you are asked again" in subjects.words(folder)


@pytest.mark.parametrize("what", ["pipe", "device", "loop", "binary", "large"])
def test_what_a_repository_brings_stops_nobody(what: str, tmp_path: Path) -> None:
    folder = repository(tmp_path / "project")
    for file in (folder / ".git" / "config", folder / ".git" / "logs" / "HEAD"):
        file.unlink()
        if what == "pipe":
            os.mkfifo(file)
        elif what == "device":
            file.symlink_to("/dev/zero")
        elif what == "loop":
            file.symlink_to(file)
        else:
            file.write_bytes(b"\xff\x00" * 2**20 if what == "large" else b"\xff\x00")
    assert subjects.about(folder)["began"] is None


def test_git_files_of_worktrees_are_followed_as_text(tmp_path: Path) -> None:
    main, tree = repository(tmp_path / "main"), tmp_path / "tree"
    place = main / ".git" / "worktrees" / "tree"
    (place / "logs").mkdir(parents=True)
    (place / "commondir").write_text("../..\n")
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {place}\n")
    assert subjects.about(tree)["remotes"] == ["https://example.com/one"]


def test_what_must_hold_is_everything_but_what_was_accepted_and_the_promised_layers(
    tmp_path: Path,
) -> None:
    consents = Consents(tmp_path / "data")
    assert consents.required(tmp_path) == consents.required(None) == frozenset(GUARANTEES)
    consents.record(
        tmp_path,
        ConsentAnswer.ALLOW,
        promise=frozenset({"Landlock"}),
        accepted=frozenset({layers.NET}),
    )
    assert consents.required(tmp_path) == (frozenset(GUARANTEES) - {layers.NET}) | {"Landlock"}
    consents.forget(tmp_path)
    assert consents.required(tmp_path) == frozenset(GUARANTEES)
