"""Many files at once: what is found, what is skipped and why, and that no file can stop the
rest."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_lsp import analysis, checker
from kernel_lsp.analysis.rules.base import Hit, RuleSite
from kernel_lsp.checker import check_paths
from kernel_lsp.presenter.reports import findings_json, findings_sarif, findings_text
from kernel_lsp.records import Analysis, Snapshot

TEXT = "import torch\ndef f(a: torch.Tensor):\n    return torch.diag(a) @ a\n"


def put(path: Path, content: str | bytes = TEXT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def problem_of(path: Path) -> str:
    ((_, analysis),) = check_paths([path])
    return analysis.problem.message if analysis.problem else ""


def test_folders_are_searched_but_for_other_people_s_code(tmp_path: Path) -> None:
    kept = [put(tmp_path / "a.py"), put(tmp_path / "pkg" / "b.pyi")]
    put(tmp_path / "notes.txt")
    for name in (".git", "__pycache__", "site-packages", "venv", "env3"):
        put(tmp_path / name / "x.py")
    put(tmp_path / "env3" / "pyvenv.cfg", "")
    assert [path for path, _ in check_paths([tmp_path])] == kept


def test_a_named_folder_or_file_is_checked_whatever_its_name(tmp_path: Path) -> None:
    inside = put(tmp_path / "venv" / "x.py")
    script = put(tmp_path / "script")
    assert [path for path, _ in check_paths([tmp_path / "venv", script, inside])] == [
        inside,
        script,
    ]


def test_results_are_the_same_and_in_order_with_processes(tmp_path: Path) -> None:
    files = [put(tmp_path / f"{i:03}.py") for i in range(60)]
    progress: list[tuple[int, int]] = []
    alone = list(check_paths([tmp_path], jobs=1))
    together = list(check_paths([tmp_path], jobs=2, on_progress=lambda *p: progress.append(p)))
    assert [path for path, _ in together] == files and together == alone
    assert progress == [(i + 1, 60) for i in range(60)]


def test_encodings_follow_the_coding_comment_and_the_byte_order_mark(tmp_path: Path) -> None:
    latin = put(tmp_path / "latin.py", ("# coding: latin-1\n# é\n" + TEXT).encode("latin-1"))
    marked = put(tmp_path / "marked.py", b"\xef\xbb\xbf" + TEXT.encode())
    for path in (latin, marked):
        ((_, analysis),) = check_paths([path])
        assert analysis.problem is None and len(analysis.findings) == 1


def test_what_cannot_be_checked_says_why(tmp_path: Path) -> None:
    assert "cannot be decoded" in problem_of(put(tmp_path / "bytes.py", b"import torch # \xff"))
    assert "cannot be decoded" in problem_of(
        put(tmp_path / "coding.py", b"# coding: nonsense\nimport torch")
    )
    assert "larger than 1 MB" in problem_of(put(tmp_path / "big.py", "#" * 1_000_001))
    assert "cannot be read" in problem_of(tmp_path / "absent.py")
    assert problem_of(put(tmp_path / "broken.py", "import torch\nx = (")) != ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_says_so(tmp_path: Path) -> None:
    path = put(tmp_path / "secret.py")
    path.chmod(0)
    assert "cannot be read" in problem_of(path)


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    put(tmp_path / "a.py")
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nothing")
    results = dict(check_paths([tmp_path]))
    assert len(results) == 2 and results[tmp_path / "dangling.py"].problem is not None


def _crash(site: RuleSite) -> Iterator[Hit]:
    yield from ()
    raise KeyError(f"nothing is known of\n{site.found.qualname}")


def test_a_rule_that_crashes_costs_nothing_but_itself_and_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = replace(analysis.RULES[0], id="KL999", check=_crash)
    monkeypatch.setattr(analysis, "RULES", (broken, *analysis.RULES))
    path = put(tmp_path / "a.py", TEXT + TEXT.replace("def f", "def g"))
    results = list(check_paths([path]))
    ((_, found),) = results
    assert [finding.target for finding in found.findings] == ["f", "g"] and found.problem is None
    (failure,) = found.failures
    assert (
        failure.startswith("rule KL999 failed on f and is left out: KeyError: ")
        and "report it" in failure
    )
    text = findings_text(results)
    assert f"{path}: {failure}\n" in text and text.endswith(", 1 rule failed\n")
    assert "KL999" in findings_json(results) and "KL999" in findings_sarif(results)


def test_a_file_that_the_analysis_crashes_on_costs_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash_on_first(snapshot: Snapshot) -> Analysis:
        if snapshot.uri.endswith("a.py"):
            raise IndexError("out of range")
        return analysis.analyze(snapshot)

    monkeypatch.setattr(checker, "analyze", crash_on_first)
    put(tmp_path / "a.py")
    put(tmp_path / "b.py")
    (_, first), (_, second) = check_paths([tmp_path])
    assert first.problem is not None and "IndexError: out of range" in first.problem.message
    assert len(second.findings) == 1
