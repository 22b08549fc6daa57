"""Patterns of paths that a repository brings: what they mean, and that none takes long."""

import time

import pytest

from kernel_lsp.patterns import MAX_PATTERNS, Patterns

LONG = "a" * 200 + ".py"


@pytest.mark.parametrize(
    ("line", "path", "said"),
    [
        ("*_gen_*.py", "models/a_gen_b.py", True),
        ("*a*b*c", "xaxbxc", True),
        ("*a*b*c", "xcxbxa", None),
        ("x*[ab]?*y", "x--a-y", True),
        ("**/gen/**/*.py", "a/gen/b/c/d.py", True),
        ("a/**", "a/b/c", True),
        ("a***b", "a--b", True),
        ("\\*\\**", "**x", True),
        ("[z-a]", "z", None),  # no set, and no error
    ],
)
def test_a_pattern_means_what_it_means_to_git(line: str, path: str, said: bool | None) -> None:
    assert Patterns([line]).verdict(path) is said


@pytest.mark.parametrize(
    "lines",
    [
        ["*" * 5000 + "b"],
        [f"*a*a*a*ab{number}" for number in range(MAX_PATTERNS // 10)],
        ["*" * 9 + "/" + "*" * 9 + "a" + "*" * 9 + "b"],
        ["?" * 5000],
        ["[" * 20_000],
    ],
)
def test_no_name_is_looked_at_for_long(lines: list[str]) -> None:
    """With loops inside loops the second would take minutes."""
    begun = time.process_time()
    assert Patterns(lines).verdict(LONG) is None
    assert time.process_time() - begun < 5.0
