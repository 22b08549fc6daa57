"""Draw at least 10,000 inputs of each kind in tests/unit/test_fuzz.py, and note how it went.

    python benchmarks/fuzz.py [--inputs 10000] [--only json_rpc] [--out
    benchmarks/results/fuzz-DATE.json]

Written are per kind the inputs, the seconds and whether all passed, and of the server its largest
memory and its slowest hover (milliseconds; above 100 ms asked again, since other programs take
time too)."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.reporting import write_record

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests" / "unit" / "test_fuzz.py"
DRAWN = 60
"""Inputs of an ordinary run, as the tests say."""


def kinds() -> list[str]:
    return re.findall(r"@given\((?:.|\n)*?\ndef test_(\w+)", TESTS.read_text())


def fuzz(kind: str, inputs: int) -> dict[str, object]:
    """One kind, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "told.json"
        environment = {
            **os.environ,
            "KERNEL_LSP_EXAMPLES": str(-(-inputs // DRAWN)),
            "KERNEL_LSP_FUZZ_OUT": str(text),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=0"]
        begin = time.monotonic()
        done = subprocess.run(
            [*command, f"{TESTS}::test_{kind}"],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        row: dict[str, object] = {
            "kind": kind,
            "inputs": -(-inputs // DRAWN) * DRAWN,
            "passed": done.returncode == 0,
            "seconds": round(time.monotonic() - begin, 1),
        }
        if text.exists():
            row |= json.loads(text.read_text())
        if done.returncode != 0:
            row["said"] = done.stdout[-3000:]
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--only", nargs="*", choices=kinds())
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    for kind in arguments.only or kinds():
        rows.append(fuzz(kind, arguments.inputs))
        print(json.dumps(rows[-1]), flush=True)
        if arguments.out:
            write_record(arguments.out, {"rows": rows})
    sys.exit(0 if all(row["passed"] for row in rows) else 1)


if __name__ == "__main__":
    main()
