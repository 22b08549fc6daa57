"""What the benchmark of lineages counts as reproduced."""

from pathlib import Path

import pytest

from benchmarks import lineage
from kernel_lsp.records import Interval


def span(low: float, high: float) -> Interval:
    return Interval(low=low, mid=(low + high) / 2, high=high)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (span(1.50, 1.60), span(1.58, 1.70), True),
        (span(1.50, 1.60), span(1.62, 1.70), True),  # within two hundredths of each other
        (span(1.50, 1.60), span(1.80, 1.90), False),
        (span(1.03, 1.05), span(0.99, 1.04), False),  # what paid must pay again
        (span(0.99, 1.01), span(0.98, 1.00), True),
        (span(1.50, 1.60), None, None),
    ],
)
def test_an_effect_is_reproduced_when_the_intervals_meet(
    first: Interval, second: Interval | None, said: bool | None
) -> None:
    assert lineage.reproduced(first, second) is said


def test_kernels_of_packages_are_experts_beside_ours(tmp_path: Path) -> None:
    text = "import triton\n\n\n@triton.jit\ndef softmax_fwd_kernel(x):\n    pass\n"
    file = tmp_path / "fla" / "ops" / "utils" / "softmax.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    ours = lineage.experts("cpu", "", None)
    assert set(ours) == set(lineage.SMALL) and all(one.workload for one in ours.values())
    every = lineage.experts("cuda", "", tmp_path)
    assert set(every) - set(ours) == {"softmax_fwd", "softmax_bwd"}
    assert every["softmax_fwd"].job.folder == str(tmp_path)
    assert list(lineage.experts("cuda", "softmax,softmax_fwd", tmp_path)) == [
        "softmax",
        "softmax_fwd",
    ]
