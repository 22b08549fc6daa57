"""How fast and how calm the static check is, on code that nobody wrote for it.

    python benchmarks/check.py                  every file of the installed torch and transformers
    python benchmarks/check.py PATH … --jobs 2
    python benchmarks/check.py --show KL104     where a rule fires, to judge its false positives

Prints files, seconds, exceptions and findings per rule, and what opening a 2,000-line file costs.
Bars: no exception; 60 s for torch + transformers on two cores; 100 ms for the file.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.reporting import circumstances, write_record
from kernel_lsp.analysis import RULES, analyze
from kernel_lsp.checker import check_paths
from kernel_lsp.records import Analysis, Snapshot

BLOCK = '''

class Block{i}(nn.Module):
    """Attention-like block number {i}."""

    def __init__(self, hidden: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(hidden)
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        return x.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        residual = x
        x = self.norm(x)
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        mixed = torch.softmax(scores, dim=-1) @ value
        mixed = mixed.transpose(1, 2).reshape(residual.shape)
        x = residual + self.output(mixed)
        return scale(0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3))), {i})
'''


def main() -> None:
    arguments = _arguments()
    paths = arguments.paths or [_package("torch"), _package("transformers")]
    start, start_cpu = time.perf_counter(), _cpu_seconds()
    results = list(check_paths(paths, jobs=arguments.jobs))
    seconds, cpu_seconds = time.perf_counter() - start, _cpu_seconds() - start_cpu
    _print_files(results, seconds, cpu_seconds)
    _print_rules(results)
    load = os.getloadavg()[0]
    print(f"load average: {load:.2f} on {os.cpu_count()} cores")
    if arguments.out:
        facts = {**circumstances(), "jobs": arguments.jobs}
        row: dict[str, Any] = {"files": len(results), "seconds": round(seconds, 1)}
        row |= {"cpu_seconds": round(cpu_seconds, 1), "exceptions": 0, "bar_seconds": 60}
        row["findings"] = _counts(results)
        body = {"schema_version": 1, "environment": facts, "check": row}
        write_record(arguments.out, body)
    _print_open(_source(num_lines=2000))
    for rule in arguments.show:
        _print_places(results, rule)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", action="append", default=[], metavar="RULE")
    return parser.parse_args()


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{name} is not installed: name the folders to check instead")
    return Path(spec.origin).parent


def _cpu_seconds() -> float:
    """Of this process and its ended children; far from the wall clock times jobs on a busy
    machine."""
    return sum(os.times()[:4])


def _print_files(results: list[tuple[Path, Analysis]], seconds: float, cpu_seconds: float) -> None:
    problems = Counter(a.problem.message.split(":")[0] for _, a in results if a.problem)
    print(f"{'files':28}{len(results):10}")
    print(f"{'targets':28}{sum(len(a.targets) for _, a in results):10}")
    print(f"{'seconds':28}{seconds:10.1f}")
    print(f"{'CPU seconds':28}{cpu_seconds:10.1f}")
    print(f"{'exceptions':28}{0:10}   (one would have ended this program)")
    for message, count in problems.most_common(8):
        print(f"  {message[:60]:60} {count}")


def _print_rules(results: list[tuple[Path, Analysis]]) -> None:
    counts = _counts(results)
    for rule in RULES:
        print(f"{rule.id + ' ' + rule.name:34}{counts[rule.id]:4}")


def _counts(results: list[tuple[Path, Analysis]]) -> Counter[str]:
    return Counter(finding.rule for _, analysis in results for finding in analysis.findings)


def _print_open(text: str) -> None:
    snapshot = Snapshot(uri="file:///generated.py", text=text)
    clocks = {"wall": time.perf_counter, "CPU": time.process_time}
    times: dict[str, list[float]] = {name: [] for name in clocks}
    for _ in range(100):
        starts = {name: clock() for name, clock in clocks.items()}
        analyze(snapshot)
        for name, clock in clocks.items():
            times[name].append((clock() - starts[name]) * 1000)
    for name, ms in times.items():
        median, p99 = statistics.median(ms), statistics.quantiles(ms, n=100)[98]
        num_lines = text.count("\n")
        print(
            f"opening {num_lines} lines, {name}: median {median:.1f} ms, p99 {p99:.1f} ms (n=100)"
        )


def _source(num_lines: int) -> str:
    head = (
        "import math\n\nimport torch\nfrom torch import nn\n\n\ndef scale(x, by):\n    return "
        "x * by\n"
    )
    blocks = (BLOCK.format(i=i) for i in range(num_lines // BLOCK.count("\n")))
    return head + "".join(blocks)


def _print_places(results: list[tuple[Path, Analysis]], rule: str) -> None:
    for path, analysis in results:
        for finding in analysis.findings:
            if finding.rule == rule:
                line = (
                    path.read_text(errors="replace").splitlines()[finding.data["line"] - 1].strip()
                )
                print(f"{path}:{finding.data['line']}: {line[:120]}")


if __name__ == "__main__":
    main()
