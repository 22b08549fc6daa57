"""Many measurements in one go, on a machine that is lent for minutes and has any number of GPUs.

    bash scripts/wheels    what the machine lacks, where it has no internet; it says how to use them
    PYTHONPATH=. python3 benchmarks/lease.py --limit-s 530 --out DIR 0:latency,tests 0:lineage 1:suite=1/1

An argument is a track: jobs one after another on one GPU, by its number modulo those that are there. Tracks
run beside each other, also on one GPU, where timing takes turns (latency and recording want a quiet host).
A job may have a word after "=", see JOBS. Each is told how long it has, what still runs at the limit is
ended, and what it wrote stays: results and logs are in DIR. Results of an earlier lease, given by --from, are
gone on with, by the same names. Not covered: bringing files back, merging them (`kernel-lsp bench --merge`).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

BENCH = "-m kernel_lsp bench benchmarks/tasks"
TRITON = "benchmarks/triton_targets.py --resume --lanes 5 --limit-s {early}"
PACKED = (
    "-m trainer.packed --table benchmarks/results/plans-h200-2026-11-21.json"
    " --earlier benchmarks/results/policy-h200-2026-11-21.json --out .whl.policy"
)
JOBS = {
    "tests": "bash scripts/test-gpu {word}",
    "suite": BENCH + " --jobs 7 --shard={word} --limit-s {early} --out {out}/suite-{name}.json",
    "latency": BENCH + " --jobs 1 --filter={word} --limit-s {early} --out {out}/latency.json",
    "triton": TRITON + " --only={word} --out {out}/triton.json",
    "packages": TRITON + " --packages .whl.packages --only=^(liger|flag).*{word} --out {out}/packages.json",
    "lineage": "benchmarks/lineage.py --limit-s {left} --data {out}/lineage --out {out}/lineage.json {word}",
    "transfer": "benchmarks/lineage_transfer.py --limit-s {left} --data {out}/lineage"
    " --out {out}/transfer.json {word}",
    "recording": "benchmarks/recording.py --limit-s 60 --out {out}/recording.json {word}",
    "training": "benchmarks/training.py --size 20m --out {out}/training.json",
    "told": PACKED + " --tasks .whl.policy/generated --tasks benchmarks/tasks --jobs 16",
    "policy": "-m trainer.short {word} --packed .whl.policy --limit-s {left} --out {out}/policy",
    "judging": "-m benchmarks.judging --out {out}/judging.json {word}",
    "idle": "benchmarks/idle.py --out {out}/idle.json",
}
"""Arguments of bash or Python. {word}: what stands after "="; {name}: that as part of a name; {left}:
seconds until the limit; {early}: so many that what is begun then will probably end in time."""
REPORTING_S = 10.0
ENDING_S = 60.0
"""What a program takes at most, once begun: the slowest of the suite (benchmarks/results)."""


def command(job: str, out: Path, left: float) -> list[str]:
    """The words of a job's command line."""
    name, _, word = job.partition("=")
    words = shlex.split(
        JOBS[name].format(
            word=shlex.quote(word),
            name=word.replace("/", "of"),
            out=shlex.quote(str(out)),
            left=int(left - REPORTING_S),
            early=max(1, int(left - ENDING_S)),
        )
    )
    program = () if words[0] == "bash" else (sys.executable,)
    return [*program, *filter(None, words)]  # no word, no argument


def track(text: str, options: argparse.Namespace, gpus: list[str], end: float) -> None:
    """One job after another; a failing one does not keep the next from running."""
    number, _, jobs = text.partition(":")
    device = gpus[int(number) % len(gpus)] if gpus else ""
    for job in jobs.split(","):
        left = end - time.monotonic()
        if left < ENDING_S:
            print(f"{left:5.0f} s left  {job}: not begun", flush=True)
            continue
        code = run(job, options.out, device, left)
        print(f"{end - time.monotonic():5.0f} s left  {job} on {device or 'no GPU'}: {code}", flush=True)


def run(job: str, out: Path, device: str, left: float) -> str:
    """The job as a group of processes of its own, all of which end with it. Returns how it ended."""
    log = out / f"{job.replace('/', 'of').replace('=', '-')[:60]}.log"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": device, "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as written:
        process = subprocess.Popen(
            command(job, out, left),
            cwd=ROOT,
            env=environment,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return f"exit code {process.wait(left)}"
        except subprocess.TimeoutExpired:
            return "ended at the limit"
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the group, so that judges end their children; SIGKILL to what is there seconds later."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 1.0)):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(patience)


def visible() -> list[str]:
    """Numbers of the GPUs that are here, as CUDA_VISIBLE_DEVICES takes them."""
    if named := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return named.split(",")
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            check=True,
            text=True,
        )
        return found.stdout.split()
    return []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tracks", nargs="+", help=f"GPU:JOB,JOB=WORD,…; jobs: {', '.join(JOBS)}")
    parser.add_argument("--limit-s", type=float, required=True, help="of everything")
    parser.add_argument("--out", type=Path, required=True, help="folder for results and logs")
    parser.add_argument("--from", type=Path, dest="earlier", help="folder of an earlier lease")
    options = parser.parse_args()
    end = time.monotonic() + options.limit_s
    asked = [job for text in options.tracks for job in text.partition(":")[2].split(",")]
    if unknown := [job for job in asked if job.partition("=")[0] not in JOBS]:
        parser.error(f"unknown jobs: {', '.join(unknown)}; there are {', '.join(JOBS)}")
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.earlier:
        shutil.copytree(options.earlier, options.out, dirs_exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(len(options.tracks)) as pool:
        list(pool.map(lambda text: track(text, options, visible(), end), options.tracks))


if __name__ == "__main__":
    main()
