"""Who else names a kernel, so that its parameters must stay."""

from pathlib import Path

import pytest

from kernel_lsp.pipeline.elsewhere import named_elsewhere

PROGRAM = "def scale_kernel(): pass\n\n\ndef scale(x):\n    scale_kernel[(1,)](x)\n"


def found(folder: Path, text: str = PROGRAM, root: Path | None = None) -> str | None:
    path = folder / "scaling.py"
    path.write_text(text)
    return named_elsewhere("scale_kernel", text, PROGRAM, path, root)


def test_its_own_program_is_no_other_place(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("from somewhere import scale_kernel\n")
    (tmp_path / "words.py").write_text("import scaling\n\nrescale_kernel = 1\n")
    assert found(tmp_path) is None
    assert found(tmp_path, root=tmp_path) is None


@pytest.mark.parametrize(
    "other",
    [
        "from scaling import scale_kernel\n",
        "from .scaling import *\n\nscale_kernel[(2,)](1)\n",
        "import package.scaling as s\n\ns.scale_kernel[(2,)](1)\n",
    ],
)
def test_a_file_that_may_launch_it_counts(tmp_path: Path, other: str) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "uses.py").write_text(other)
    assert found(tmp_path, root=tmp_path) == "uses.py"
    assert found(tmp_path) is None, "without a folder only the files beside it are looked at"
    (tmp_path / "uses_it.py").write_text(other)
    assert found(tmp_path) == "uses_it.py"


def test_a_table_of_kernels_in_the_same_file_counts(tmp_path: Path) -> None:
    assert found(tmp_path, PROGRAM + "\nKERNELS = {'scale': scale_kernel}\n") == (
        "scaling.py, beside its launchers"
    )
