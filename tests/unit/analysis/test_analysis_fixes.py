"""Fixes of findings: what they change, that the finding is gone afterwards, and where none is
offered."""

from pathlib import Path

import pytest

from kernel_lsp.analysis import analyze
from kernel_lsp.records import Finding, Snapshot

CASES = Path(__file__).parents[2] / "cases"
OFFSETS = (CASES / "KL203_int32_offset_overflow.py").read_text()
SUMS = (CASES / "KL204_low_precision_accumulation.py").read_text()


def findings(text: str) -> list[Finding]:
    return [
        f
        for f in analyze(Snapshot(uri="case.py", text=text)).findings
        if f.rule in ("KL203", "KL204")
    ]


def changes(text: str) -> list[tuple[str, str]]:
    """Of the first fix that there is."""
    fix = next((f.data["fix"] for f in findings(text) if "fix" in f.data), {"edits": []})
    return [(text[edit["start"] : edit["end"]], edit["new"]) for edit in fix["edits"]]


def mended(text: str) -> str:
    for edit in reversed(findings(text)[0].data["fix"]["edits"]):
        text = text[: edit["start"]] + edit["new"] + text[edit["end"] :]
    return text


def test_an_offset_is_computed_in_64_bits() -> None:
    assert "base = batch.to(tl.int64) * length * width" in mended(OFFSETS)
    assert findings(mended(OFFSETS)) == []


def test_each_sum_is_kept_in_float32() -> None:
    left = SUMS
    for count in (2, 1, 0):
        left = mended(left)
        assert len(findings(left)) == count
    assert "acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)" in left
    assert "low += tl.dot(a, b, out_dtype=tl.float32)" in left
    assert "tl.sum(x.to(tl.float32))" in left


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("batch * length", "(batch + 1) * length", [("batch + 1", "(batch + 1).to(tl.int64)")]),
        ("batch * length * width", "length * width * batch", [("batch", "batch.to(tl.int64)")]),
        ("    x = tl.load", "    if width > 8:\n        base = base + 1\n    x = tl.load", []),
        ("    x = tl.load", "    for i in range(2):\n        x_ptr += base\n    x = tl.load", []),
        ("    base = batch", "    base = 0\n    for i in range(2):\n        base = batch", []),
    ],
)
def test_an_offset_that_a_loop_hands_on_keeps_its_type(
    old: str, new: str, expected: list[tuple[str, str]]
) -> None:
    text = OFFSETS.split("# Near misses.")[0]
    assert old in text and len(findings(text.replace(old, new, 1))) == 1
    assert changes(text.replace(old, new, 1)) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("acc = tl.dot(a, b, acc)", "acc = tl.dot(a, b, acc, out_dtype=tl.float16)", 2),
        ("acc = tl.dot(a, b, acc)", "acc += tl.dot(a, b)", 1),
        ("acc = tl.dot(a, b, acc)", "acc = tl.dot(acc, b, acc)", 0),
        ("acc = tl.dot(a, b, acc)", "acc += tl.dot(acc, b)", 0),
        (
            "acc = tl.dot(a, b, acc)",
            "acc = tl.dot(a, b, acc)\n    tl.store(c_ptr, tl.dot(acc, b))",
            0,
        ),
        ("acc = tl.dot(a, b, acc)", "acc += a\n        b = tl.dot(acc, a)", 0),
        ("acc = tl.dot(a, b, acc)", "acc = a + acc", 1),
        ("acc = tl.dot(a, b, acc)", "acc = acc + a\n        acc = acc * a", 0),
        ("    acc = tl.zeros", "    half = tl.float16\n    acc = tl.zeros", 1),
    ],
)
def test_an_accumulator_that_is_used_otherwise_keeps_its_type(
    old: str, new: str, expected: int
) -> None:
    text = SUMS.split("@triton.jit\ndef total")[0].replace(
        "        low += tl.dot(a, b, out_dtype=tl.float16)", ""
    )
    assert old in text and findings(text.replace(old, new))
    found = changes(text.replace(old, new))
    assert found == [("tl.float16", "tl.float32")] * expected
