"""A host for fault injection only: it crashes, stalls or answers at once, and measures nothing.

The main flow is tested with the real host (test_main_flow.py). What it does is said by the
variable FAULT: offer (answer with a ready verdict), early (report that verdict and never end the
job), slow (never answer, with a child process that would be an orphan), crash (die when asked),
search (quick jobs are answered at once; a deeper search reports something faster and never ends),
noted (a search ends with a note), busy (the first job is refused because of others, the second is
cut short, the third finds something), busier (every job is refused). Events are appended to
events.jsonl in the data folder, jobs to jobs.jsonl."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace

from kernel_lsp import analysis, wire
from kernel_lsp.records import (
    Candidate,
    EvalStatus,
    Evaluation,
    Interval,
    Job,
    Outcome,
    Progress,
    Proposal,
    SearchMode,
    SearchSummary,
    Snapshot,
    SourceEdit,
    Step,
    StopReason,
    Timing,
    Verdict,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.rewrite.edit import apply_edit


def verdict(job: Job) -> Outcome:
    """A rewrite that replaces ``torch.sum`` by the method, with invented but consistent numbers."""
    snapshot = Snapshot(uri="file:///x.py", text=job.text)
    target = analysis.find_target(analysis.analyze(snapshot), job.qualname)
    assert target is not None
    old = job.text[target.span.start : target.span.end]
    new = re.sub(r"torch\.sum\((\w+), dim=(\d)\)", r"\1.sum(\2)", old).replace("\r\n", "\n")
    edit = SourceEdit(qualname=job.qualname, target=new)
    after = analysis.fingerprint_of(apply_edit(job.text, target.span, edit), job.qualname)
    timings = tuple(
        Timing(provider=name, median_ms=ms, p20_ms=ms, p80_ms=ms, num_reps=30, cold_cache=True)
        for name, ms in (("eager", 1.0), ("candidate", 0.5))
    )
    evaluation = Evaluation(
        status=EvalStatus.PASSED,
        device="cpu",
        timings=timings,
        speedups={"eager": Interval(low=1.9, mid=2.0, high=2.1)},
    )
    proposal = Proposal(
        id=f"test-{target.fingerprint[:10]}",
        fingerprint=target.fingerprint,
        fingerprint_after=after or "",
        qualname=job.qualname,
        workload=Workload(name="default", origin=WorkloadOrigin.GET_INPUTS),
        candidate=Candidate(
            id="c",
            edit=edit,
            program="",
            entry=job.qualname,
            steps=(Step(skill="sum-method", site="s"),),
            summary="call the method",
        ),
        evaluation=evaluation,
        verdict=Verdict.FASTER,
        created="2026-01-01T00:00:00+00:00",
    )
    return Outcome(qualname=job.qualname, proposals=(proposal,))


def found_deeper(job: Job) -> Proposal:
    """The same rewrite, said to be faster and to come from a search."""
    (quick,) = verdict(job).proposals
    evaluation = replace(quick.evaluation, speedups={"eager": Interval(low=2.9, mid=3.0, high=3.1)})
    candidate = replace(
        quick.candidate, id="d", search="s#1", move="refine", turn=2, proposer="openai:m"
    )
    return replace(
        quick, id=f"deep-{quick.fingerprint[:10]}", evaluation=evaluation, candidate=candidate
    )


def noted(job: Job) -> Outcome:
    summary = SearchSummary(
        mode=SearchMode.TURNS,
        stop=StopReason.EXHAUSTED,
        attempts=0,
        notes=("openai:m was left out: 401",),
    )
    return replace(verdict(job), search=summary)


def late(job: Job) -> Outcome:
    """What a gate says that others kept from judging in time."""
    (quick,) = verdict(job).proposals
    evaluation = Evaluation(
        status=EvalStatus.TIMED_OUT, device="cpu", detail="took longer than 480 s"
    )
    rejected = replace(quick, evaluation=evaluation, verdict=Verdict.REJECTED)
    return Outcome(
        qualname=job.qualname,
        proposals=(rejected,),
        note="no rewrite passed: took longer than 480 s",
    )


REFUSED = {
    "op": "failed",
    "cause": "the GPU is busy",
    "remedy": "try again later",
    "lasting": False,
}


def answer(message: dict, fault: str, log: str) -> object:
    op = message["op"]
    if op == "record":
        with open(log, "a") as file:
            file.writelines(json.dumps(event) + "\n" for event in message["events"])
        return len(message["events"])
    if op == "cached":
        return [None for _ in message["jobs"]]
    if op == "memory":
        return {"dismissals": [], "tracker": {"version": 1, "proposals": []}}
    if op == "prompts":
        return "# What a model is sent"
    if op == "optimize" and fault == "crash":
        os._exit(9)
    if op == "optimize" and fault == "slow":
        child = subprocess.Popen(["sleep", "1000"])
        with open(log + ".pids", "a") as file:
            file.write(f"{os.getpid()} {child.pid}\n")
        return None
    if op == "optimize" and fault == "noted":
        return wire.to_json(noted(wire.from_json(Job, message["job"])))
    if op == "optimize":
        return wire.to_json(verdict(wire.from_json(Job, message["job"])))
    return []


def main() -> None:
    requests, replies = wire.claim_stdio()
    fault, log, num_jobs = os.environ["FAULT"], os.path.join(sys.argv[1], "events.jsonl"), 0
    os.makedirs(sys.argv[1], exist_ok=True)
    while (frame := wire.read_frame(requests)) is not None:
        message = frame[0]
        if message["op"] == "shutdown":
            return
        if message["op"] == "cancel":
            with open(log, "a") as file:
                file.write(json.dumps({"kind": "host_cancelled", "time": time.time()}) + "\n")
            continue
        job = wire.from_json(Job, message["job"]) if message["op"] == "optimize" else None
        if job is not None:
            about = {"search": wire.to_json(job.search), "allowed_origin": job.allowed_origin}
            with open(os.path.join(sys.argv[1], "jobs.jsonl"), "a") as file:
                file.write(json.dumps({"background": job.background, **about}) + "\n")
        num_jobs += job is not None
        if job is not None and (fault == "busier" or (fault == "busy" and num_jobs == 1)):
            wire.write_frame(replies, {**REFUSED, "id": message["id"]})
            continue
        if job is not None and fault == "busy" and num_jobs == 2:
            wire.write_frame(
                replies, {"op": "reply", "id": message["id"], "value": wire.to_json(late(job))}
            )
            continue
        if job is not None and (fault == "early" or (fault == "search" and job.search)):
            found = found_deeper(job) if job.search else verdict(job).proposals[0]
            progress = wire.to_json(Progress(phase="search", message="round 1", proposal=found))
            wire.write_frame(replies, {"op": "progress", "id": message["id"], "progress": progress})
            continue
        result = answer(message, fault, log)
        if message["op"] == "optimize" and fault == "slow":
            continue
        wire.write_frame(replies, {"op": "reply", "id": message["id"], "value": result})


if __name__ == "__main__":
    main()
