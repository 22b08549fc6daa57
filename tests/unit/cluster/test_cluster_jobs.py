"""Jobs by id: one attempt at a time, results once, losses done again; lanes here are scripted."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp.cluster.jobs import ClusterJobs
from kernel_lsp.errors import ClusterError, JobFailed


async def lane(jobs: ClusterJobs, done: list[str], losses: dict[str, int]) -> None:
    """Does jobs, and loses some of them first."""
    while True:
        job = await jobs.next(None, set)
        jobs.begin(job, "here", lambda: None)
        await asyncio.sleep(0)
        if losses.get(job.id, 0):
            losses[job.id] -= 1
            jobs.again(job, "the node died")
            continue
        done.append(job.id)
        jobs.settle(job, job.work * 2)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2)), max_size=12), st.integers(1, 4))
def test_every_job_has_one_result_however_many_are_lost(
    asked: list[tuple[int, int]], lanes: int
) -> None:
    async def run() -> None:
        jobs, done = ClusterJobs(), list[str]()
        losses = {str(number): lost for number, lost in asked}
        working = [asyncio.create_task(lane(jobs, done, losses)) for _ in range(lanes)]
        found = await asyncio.gather(*(jobs.result(str(n), n, "") for n, _ in asked))
        assert found == [2 * n for n, _ in asked]
        assert sorted(done) == sorted({str(n) for n, _ in asked})  # asked for twice, done once
        for one in working:
            one.cancel()
        await asyncio.gather(*working, return_exceptions=True)

    asyncio.run(run())


async def test_a_job_that_is_lost_three_times_is_given_up_and_says_why() -> None:
    jobs, done = ClusterJobs(), list[str]()
    working = asyncio.create_task(lane(jobs, done, {"bad": 3}))
    with pytest.raises(JobFailed, match=r"job bad was lost 3 times.*the node died"):
        await jobs.result("bad", 1, "")
    assert await jobs.result("good", 1, "") == 2 and done == ["good"]
    jobs.forget("bad")
    assert await jobs.result("bad", 1, "") == 2
    working.cancel()


async def test_a_lane_takes_more_of_its_group_then_of_one_that_nobody_has() -> None:
    jobs = ClusterJobs()
    asking = [
        asyncio.create_task(jobs.result(name, 0, name[0]))
        for name in ("a1", "a2", "b1", "c1", "b2")
    ]
    await asyncio.sleep(0)
    assert (await jobs.next(None, lambda: {"a"})).id == "b1"
    assert (await jobs.next("b", lambda: {"a"})).id == "b2"
    assert (await jobs.next("b", lambda: {"a"})).id == "c1"
    assert (await jobs.next("c", lambda: {"a"})).id == "a1"
    for one in asking:
        one.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


async def test_two_jobs_that_were_lost_before_never_share_a_process() -> None:
    jobs, under_way = ClusterJobs(), list[str]()
    asking = [
        asyncio.create_task(jobs.result(name, 0, "")) for name in ("deadly", "beside", "fresh")
    ]
    await asyncio.sleep(0)
    for job in [await jobs.next(None, set), await jobs.next(None, set)]:
        jobs.again(job, "killed")

    def doubtful() -> bool:
        return bool(under_way)

    first = await jobs.next(None, set, doubtful)
    under_way.append(first.id)
    assert (first.id, (await jobs.next(None, set, doubtful)).id) == ("beside", "fresh")
    waiting = asyncio.create_task(jobs.next(None, set, doubtful))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    under_way.clear()
    jobs.settle(first, 1)
    assert (await asyncio.wait_for(waiting, 120)).id == "deadly"
    for one in asking:
        one.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


async def test_a_job_that_nobody_waits_for_any_more_is_stopped_and_another_caller_keeps_it() -> (
    None
):
    jobs, stopped = ClusterJobs(), list[str]()
    alone = asyncio.create_task(jobs.result("alone", 0, ""))
    shared = [asyncio.create_task(jobs.result("shared", 0, "")) for _ in range(2)]
    await asyncio.sleep(0)
    begun = [await jobs.next(None, set) for _ in range(2)]
    for job in begun:
        jobs.begin(job, "here", lambda name=job.id: stopped.append(name))  # type: ignore[misc]
    alone.cancel()
    shared[0].cancel()
    await asyncio.gather(alone, shared[0], return_exceptions=True)
    assert stopped == ["alone"] and list(jobs.known) == ["shared"]
    for job in begun:
        jobs.settle(job, 5)  # what comes too late counts nowhere
    assert await shared[1] == 5 and list(jobs.known) == ["shared"]


async def test_who_waits_for_a_lost_cluster_hears_it_at_once() -> None:
    jobs = ClusterJobs()
    waiting = asyncio.create_task(jobs.result("x", 0, ""))
    await asyncio.sleep(0)
    jobs.fail(ClusterError("no node is left"))
    for late in (waiting, jobs.result("y", 0, "")):
        with pytest.raises(ClusterError, match="no node is left"):
            await late
