"""Lines, positions, and the watch of the disk."""

import asyncio
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp import documents
from kernel_lsp.documents import DiskWatch
from kernel_lsp.positions import LineIndex, split_lines

ENCODINGS = ("utf-8", "utf-16", "utf-32")
TEXTS = st.text(alphabet="ab\n\r\t\x0c\x1c\x85\u2028é中\U0001f600", max_size=40)


def test_only_lsp_line_ends_end_lines() -> None:
    text = "a\x0cb\u2028c\x85d\x1ce\r\nf\rg\n\nh"
    assert split_lines(text) == ("a\x0cb\u2028c\x85d\x1ce\r\n", "f\r", "g\n", "\n", "h")


@given(TEXTS)
def test_lines_join_to_the_text(text: str) -> None:
    assert "".join(split_lines(text)) == text


@pytest.mark.parametrize(("encoding", "units"), [("utf-8", 9), ("utf-16", 4), ("utf-32", 3)])
def test_characters_are_counted_in_the_units_of_the_client(encoding: str, units: int) -> None:
    text = "x\n\U0001f600é中z"  # 4+2+3 bytes, 2+1+1 UTF-16 units, 3 code points before z
    assert LineIndex(text, encoding).position(text.index("z")) == (1, units)
    assert LineIndex(text, encoding).offset(1, units) == text.index("z")


@given(TEXTS, st.sampled_from(ENCODINGS))
def test_positions_and_offsets_are_inverse(text: str, encoding: str) -> None:
    positions = LineIndex(text, encoding)
    for offset in range(len(text) + 1):
        inside_line_end = text[max(offset - 1, 0) : offset + 1] == "\r\n"
        if not inside_line_end:
            assert positions.offset(*positions.position(offset)) == offset


def test_a_position_past_the_end_of_its_line_is_that_end() -> None:
    positions = LineIndex("ab\r\ncd", "utf-16")
    assert positions.offset(0, 99) == 2
    assert positions.offset(1, 99) == 6
    assert positions.offset(99, 0) == 6


def test_an_offset_after_the_last_line_end_is_a_line_of_its_own() -> None:
    assert LineIndex("a\n", "utf-16").position(2) == (1, 0)
    assert LineIndex("", "utf-16").position(0) == (0, 0)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///a%20b/c%23.py", Path("/a b/c#.py")),
        ("untitled:Untitled-1", None),
        ("vscode-notebook-cell:/a.ipynb#1", None),
    ],
)
def test_paths_of_uris(uri: str, path: Path | None) -> None:
    assert documents.path_of(uri) == path


def test_installed_and_huge_files_are_not_wanted(tmp_path: Path) -> None:
    library = tmp_path / "env" / "site-packages" / "library"
    library.mkdir(parents=True)
    (tmp_path / "vendored").symlink_to(library)
    assert not documents.is_wanted((tmp_path / "vendored" / "model.py").as_uri(), "x = 1")
    assert documents.is_wanted("file:///p/a.py", "x = 1")
    assert not documents.is_wanted(
        "file:///p/.venv/lib/python3.11/site-packages/torch/a.py", "x = 1"
    )
    assert not documents.is_wanted("file:///p/a.py", "x" * 1_000_001)


def test_a_file_that_is_not_utf8_or_gone_reads_as_none(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    assert documents.read(file.as_uri()) is None
    file.write_bytes(b"# \xff\n")
    assert documents.read(file.as_uri()) is None
    file.write_bytes("# é\r\n".encode())
    snapshot = documents.read(file.as_uri())
    assert snapshot is not None
    assert snapshot.text == "# é\r\n"


async def test_changes_on_disk_arrive_together_and_once(tmp_path: Path) -> None:
    loop, batches = asyncio.get_running_loop(), asyncio.Queue[frozenset[Path]]()
    watch = DiskWatch(
        lambda paths: loop.call_soon_threadsafe(batches.put_nowait, paths), delay_s=1.0
    )
    try:
        assert watch.add([tmp_path, tmp_path]) == []
        for name in ("a.py", "b.py", "noise.log"):
            (tmp_path / name).write_text("x")
        (tmp_path / "a.py").rename(tmp_path / "c.py")
        batch = await asyncio.wait_for(batches.get(), 120)
        assert {path.name for path in batch} == {"a.py", "b.py", "c.py"}
        await asyncio.sleep(1.2)
        assert batches.empty()
    finally:
        watch.stop()


async def test_a_folder_that_appears_later_is_watched_from_then_on(tmp_path: Path) -> None:
    """As .kernel-lsp does by the first recording; also when it was removed in between."""
    loop, batches = asyncio.get_running_loop(), asyncio.Queue[frozenset[Path]]()
    watch = DiskWatch(
        lambda paths: loop.call_soon_threadsafe(batches.put_nowait, paths), delay_s=0.1
    )
    folder = tmp_path / ".kernel-lsp"

    async def told(name: str) -> None:
        async with asyncio.timeout(120):
            while folder / name not in await batches.get():
                pass

    try:
        assert watch.add([tmp_path]) == watch.add([folder], recursive=True) == []
        for turn in range(2):
            folder.mkdir()
            (folder / f"first{turn}.toml").write_text("")  # perhaps before the watch begins
            await told(f"first{turn}.toml")
            (folder / f"second{turn}.toml").write_text("")
            await told(f"second{turn}.toml")
            shutil.rmtree(folder)
    finally:
        watch.stop()
