"""Files come back byte for byte, and a failed write leaves the old content."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp import files


@pytest.mark.parametrize(
    "raw",
    [
        b"x = 1\r\ny = 2\r\n",
        b"\xef\xbb\xbfx = '\xc3\xa9'\n",
        b"# -*- coding: latin-1 -*-\ns = '\xe9'\n",
        b"x = 1\x0c\ny = '\xe2\x80\xa8'\r",
        b"",
    ],
)
def test_reading_and_writing_back_changes_no_byte(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(raw)
    source = files.read_source(path)
    files.write_source(path, source.text, source.encoding)
    assert path.read_bytes() == raw


def test_a_failed_write_keeps_the_old_content_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.py"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.replace_file(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_links_and_permissions_survive(tmp_path: Path) -> None:
    real, link = tmp_path / "real.py", tmp_path / "link.py"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    files.replace_file(link, b"new")
    assert link.is_symlink()
    assert (real.read_bytes(), real.stat().st_mode & 0o777) == (b"new", 0o640)


def test_text_that_the_encoding_cannot_hold_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"# coding: ascii\n")
    with pytest.raises(UnicodeEncodeError):
        files.write_source(path, "x = '\u00e9'\n", "ascii")
    assert path.read_bytes() == b"# coding: ascii\n"


@given(content=st.binary(max_size=2000))
def test_the_new_content_is_exactly_what_was_given(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("f") / "x"
    files.replace_file(path, content)
    assert path.read_bytes() == content


@pytest.mark.parametrize("encoding", ["punycode", "idna", "IDNA"])
def test_encodings_of_host_names_are_refused(tmp_path: Path, encoding: str) -> None:
    """They take quadratic time: 800 kB of a repository's took a minute."""
    path = tmp_path / "a.py"
    path.write_bytes(f"# coding: {encoding}\n".encode() + b"a" * 400_000 + b"-" + b"9" * 400_000)
    with pytest.raises(SyntaxError, match="host names"):
        files.read_source(path)
