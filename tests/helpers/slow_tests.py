"""Which tests take long: `bash scripts/test` leaves out what tests/slow.txt names.

    bash scripts/test tests/unit tests/adversarial -n 2 --dist loadfile --junitxml=/tmp/tests.xml
    python tests/helpers/slow_tests.py /tmp/tests.xml

writes the file anew from the reports that are named, so name one for each folder that scripts/test
runs in parallel. A test that is not in the file is run."""

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

SLOW = Path(__file__).resolve().parents[1] / "slow.txt"
SLOW_S = 1.5
"""Of one core among two. 399 of 13,259 tests took longer on 2026-11-26, and 2,500 of 3,900 s."""


def slow_tests(report: Path) -> Iterator[str]:
    """Names of tests, as pytest selects them, that took longer than SLOW_S in a JUnit report."""
    for case in ElementTree.parse(report).iter("testcase"):
        if float(case.get("time", 0)) > SLOW_S:
            yield _selected(case.get("classname", ""), case.get("name", ""))


def _selected(dotted: str, name: str) -> str:
    """`tests.unit.test_a.TestB`, `c` -> `tests/unit/test_a.py::TestB::c`."""
    parts = dotted.split(".")
    length = next(i for i, part in enumerate(parts, 1) if part.startswith("test_"))
    return "::".join(["/".join(parts[:length]) + ".py", *parts[length:], name])


def main(reports: list[str]) -> None:
    names = {name for report in reports for name in slow_tests(Path(report))}
    SLOW.write_text("".join(f"{name}\n" for name in sorted(names)))


if __name__ == "__main__":
    main(sys.argv[1:])
