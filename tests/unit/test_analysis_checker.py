"""Many files at once: what is found, what is skipped and why, and that no file can stop the rest."""

import os
from pathlib import Path

import pytest

from kernel_lsp.checker import check_paths

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
    assert [path for path, _ in check_paths([tmp_path / "venv", script, inside])] == [inside, script]


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
    assert "cannot be decoded" in problem_of(put(tmp_path / "coding.py", b"# coding: nonsense\nimport torch"))
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
