"""A number with its noun."""

import pytest

from kernel_lsp.presenter.plurals import count


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (21, "21 files")]
)
def test_only_one_is_singular(number: int, text: str) -> None:
    assert count(number, "file") == text
