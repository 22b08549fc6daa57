"""Who allowed workspace code to run."""

import json
from pathlib import Path

import pytest

from kernel_lsp.config import Settings
from kernel_lsp.consent import MAX_ATTEMPTS, Answer, Consents, remote_origin, trust, trust_remote
from kernel_lsp.errors import ConfigError


def test_nobody_said_anything_is_none(tmp_path: Path) -> None:
    assert Consents(tmp_path).answer("/project") is None


def test_an_answer_is_shared_with_other_editors_and_kept_per_folder(tmp_path: Path) -> None:
    Consents(tmp_path).record("/one", Answer.ALLOW)
    Consents(tmp_path).record("/two", Answer.NEVER)
    other = Consents(tmp_path)
    assert other.answer("/one") is Answer.ALLOW
    assert other.answer("/two") is Answer.NEVER
    assert other.answer("/one/deeper") is None
    assert not other.may_ask("/one")


def test_the_setting_comes_before_the_stored_answer(tmp_path: Path) -> None:
    consents = Consents(tmp_path)
    consents.record("/one", Answer.NEVER)
    assert consents.answer("/one", setting="always") is Answer.ALLOW
    assert consents.answer("/two", setting="never") is Answer.NEVER


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
    consents.record("/one", Answer.NEVER)
    consents.forget("/one")
    assert Consents(tmp_path).answer("/one") is None
    assert Consents(tmp_path).may_ask("/one")


def test_a_folder_that_cannot_be_written_keeps_the_answer_for_the_session(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    consents = Consents(blocked)
    consents.count_attempt("/one")
    with pytest.raises(ConfigError, match="data_dir"):
        consents.record("/one", Answer.ALLOW)
    assert consents.answer("/one") is Answer.ALLOW
    assert Consents(blocked).answer("/one") is None


def test_links_to_a_folder_share_its_answer(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    trust(link, tmp_path / "data", Answer.ON_REQUEST)
    assert Consents(tmp_path / "data").answer(real) is Answer.ON_REQUEST


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
    assert other.answer("/one") is Answer.ALLOW
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
    entry = {"answer": "allow", "remote": damage}
    (tmp_path / "consent.json").write_text(json.dumps({str(Path("/one").resolve()): entry}))
    assert not Consents(tmp_path).allows_remote("/one", HERE)
    assert Consents(tmp_path).answer("/one") is Answer.ALLOW
    Consents(tmp_path).allow_remote("/one", THERE)
    assert Consents(tmp_path).allows_remote("/one", THERE)


def test_leave_to_send_in_a_folder_that_cannot_be_written_holds_for_the_session(tmp_path: Path) -> None:
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
