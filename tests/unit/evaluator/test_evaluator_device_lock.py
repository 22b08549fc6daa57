"""Turns on a device: locks between real processes, hours worked out by hand, real neighbors.

Where a neighbor on a GPU is needed, a real process that holds a file open stands in for one that
holds /dev/nvidia-uvm open, and the scan of /proc is the real one. NVML is a script only for what
this machine cannot produce: counters, errors of a driver, another container's numbering."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.config import Settings
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator.sharing import device_lock as device_sharing
from kernel_lsp.evaluator.sharing import nvml
from kernel_lsp.evaluator.sharing.allowance import DeviceLedger, continues_at, used_s
from kernel_lsp.evaluator.sharing.device_lock import (
    DeviceSharing,
    Disturbed,
    SharingRules,
    busy_before,
    busy_during,
)
from kernel_lsp.evaluator.sharing.locks import LockFiles, device_key
from kernel_lsp.evaluator.sharing.nvml import Gpu, Neighbor, Neighborhood
from kernel_lsp.records import Progress

NOW = 1_000_000.0
LONG_S = 120.0


def rules(folder: Path, **changes: Any) -> SharingRules:
    return SharingRules(data_dir=str(folder), **changes)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110 - what is waited for is another process
            await asyncio.sleep(0.01)


# --- the hour --------------------------------------------------------------------------------


def test_only_the_part_of_a_use_within_the_last_hour_counts() -> None:
    # began 3650 s ago and took 100 s: 50 s of it lie within the hour; 30 s ten minutes ago count
    # whole
    assert used_s([(NOW - 3650, 100), (NOW - 600, 30)], NOW) == pytest.approx(80)


def test_a_use_in_the_future_does_not_count_because_the_clock_was_set_back() -> None:
    assert used_s([(NOW + 100, 50)], NOW) == 0


def test_the_allowance_returns_when_enough_of_the_oldest_use_is_an_hour_old() -> None:
    uses = [(NOW - 3000, 600.0), (NOW - 1000, 300.0)]
    # 900 s used, 800 allowed: 100 s too many. The first use began at -3000, so its first 100 s are
    # older than an hour at -3000 + 100 + 3600 = +700.
    assert continues_at(uses, 800, NOW) == pytest.approx(NOW + 700)
    # 200 allowed: 700 too many, 600 of them the first use, 100 of the second: -1000 + 100 + 3600 =
    # +2700
    assert continues_at(uses, 200, NOW) == pytest.approx(NOW + 2700)
    assert used_s(uses, continues_at(uses, 200, NOW)) == pytest.approx(200)


def test_within_the_allowance_nothing_is_waited_for() -> None:
    assert continues_at([(NOW - 100, 10.0)], 60, NOW) == NOW


def test_uses_of_one_minute_share_an_entry_and_old_ones_go(tmp_path: Path) -> None:
    ledger = DeviceLedger(tmp_path / "used.json")
    for start, seconds in ((NOW - 7300, 5), (NOW, 2.5), (NOW + 30, 4), (NOW + 61, 1)):
        ledger.add(start, seconds)
    assert json.loads((tmp_path / "used.json").read_text()) == [[NOW, 6.5], [NOW + 61, 1]]
    assert DeviceLedger(tmp_path / "used.json").uses() == [(NOW, 6.5), (NOW + 61, 1.0)]


@pytest.mark.parametrize(
    "damage",
    ["", "{", "7", '{"a": 1}', "[[1]]", '[["x", 2]]', "[[1e999, 5]]", "[" * 100_000, "[[1, -5]]"],
)
def test_a_damaged_file_counts_as_empty_and_is_replaced(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "used.json"
    path.write_text(damage)
    ledger = DeviceLedger(path)
    assert ledger.uses() == []
    ledger.add(NOW, 3)
    assert DeviceLedger(path).uses() == [(NOW, 3.0)]


def test_what_cannot_be_written_still_counts_in_this_process(tmp_path: Path) -> None:
    """A file size limit of nothing makes every write fail as on a full disk."""
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from kernel_lsp.evaluator.sharing.allowance import DeviceLedger\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, "
        "resource.getrlimit(resource.RLIMIT_FSIZE)[1]))\n"
        "ledger = DeviceLedger(Path(sys.argv[1]))\n"
        "ledger.add(100.0, 7.0); assert ledger.uses() == [(100.0, 7.0)]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, "
        "(resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)\n"
        "ledger.add(300.0, 1.0)\n"
    )
    path = tmp_path / "used.json"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert DeviceLedger(path).uses() == [(100.0, 7.0), (300.0, 1.0)]
    assert list(tmp_path.iterdir()) == [path]


async def test_a_spent_hour_refuses_the_background_and_nobody_else(
    tmp_path: Path, quiet_gpu: Neighborhood
) -> None:
    settings = Settings(data_dir=str(tmp_path), gpu_minutes_per_hour=2)
    asked = DeviceSharing(SharingRules.of(settings), neighborhood=quiet_gpu)
    behind = DeviceSharing(SharingRules.of(settings, background=True), neighborhood=quiet_gpu)
    used = LockFiles(str(tmp_path), device_key("cuda", None)).ledger
    used.add(time.time() - 200, 119)
    async with behind.turn("cuda"):
        pass
    used.add(time.time() - 70, 1.5)
    with pytest.raises(EvaluationError, match="2 minutes of the GPU are used") as refused:
        async with behind.turn("cuda"):
            raise AssertionError("it was let in")
    assert "gpu_minutes_per_hour" in str(refused.value) and "may use it again" in str(refused.value)
    async with asked.turn("cuda"):
        pass
    unlimited = Settings(data_dir=str(tmp_path), gpu_minutes_per_hour=60)
    assert SharingRules.of(unlimited, background=True).minutes_per_hour is None


async def test_a_turn_is_written_down(tmp_path: Path) -> None:
    async with DeviceSharing(rules(tmp_path)).turn("cpu"):
        await asyncio.sleep(0.2)
    ((start, seconds),) = LockFiles(str(tmp_path), "cpu").ledger.uses()
    assert 0.2 <= seconds < LONG_S and time.time() - LONG_S < start <= time.time()


# --- one lock per device -------------------------------------------------------------------------

HOLDER = """
import asyncio, sys
from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing, SharingRules
async def main():
    async with DeviceSharing(SharingRules(data_dir=sys.argv[1])).turn("cpu"):
        print("in", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
asyncio.run(main())
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process in its turn on the CPU."""
    argv = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"in\n"
        yield process
        process.kill()


async def test_another_process_is_waited_for_by_name(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    said: list[Progress] = []
    entered = asyncio.Event()

    async def wait() -> float:
        async with DeviceSharing(rules(tmp_path)).turn("cpu", report=said.append) as turn:
            entered.set()
            return turn.waited_s

    task = asyncio.create_task(wait())
    await until(lambda: said)
    assert said[0].message == f"waiting for kernel-lsp (pid {holder.pid}) on the same device"
    assert not entered.is_set()
    assert holder.stdin is not None
    holder.stdin.write(b"\n")
    holder.stdin.flush()
    assert await asyncio.wait_for(task, LONG_S) > 0
    assert len(said) == 1  # said once, not at every look


async def test_the_death_of_a_holder_frees_the_device(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    holder.send_signal(signal.SIGKILL)
    async with asyncio.timeout(LONG_S), DeviceSharing(rules(tmp_path)).turn("cpu"):
        assert LockFiles(str(tmp_path), "cpu").holder() == os.getpid()
    assert LockFiles(str(tmp_path), "cpu").holder() is None


async def test_who_stops_waiting_leaves_no_lock_behind(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    said: list[Progress] = []

    async def wait() -> None:
        async with DeviceSharing(rules(tmp_path)).turn("cpu", report=said.append):
            raise AssertionError("it was let in")

    task = asyncio.create_task(wait())
    await until(lambda: said)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    holder.kill()
    async with asyncio.timeout(LONG_S), DeviceSharing(rules(tmp_path)).turn("cpu"):
        pass


async def test_who_just_had_the_device_cannot_take_it_again_before_who_waits(
    tmp_path: Path,
) -> None:
    """Two editors are two Manners: their locks know nothing of each other."""
    order: list[str] = []

    async def work(name: str, times: int) -> None:
        its_own = DeviceSharing(rules(tmp_path))
        for _ in range(times):
            async with its_own.turn("cpu"):
                order.append(name)
                await asyncio.sleep(0.2)

    async with asyncio.timeout(LONG_S):
        await asyncio.gather(work("a", 4), work("b", 4))
    assert "".join(order[:6]) in ("ababab", "bababa")


async def test_shared_turns_overlap_and_exclusive_ones_do_not(
    tmp_path: Path, quiet_gpu: Neighborhood
) -> None:
    ours = DeviceSharing(rules(tmp_path), neighborhood=quiet_gpu)
    inside: set[str] = set()
    order: list[str] = []
    together = asyncio.Barrier(2)

    async def work(name: str, exclusive: bool) -> None:
        async with ours.turn("cuda", exclusive=exclusive):
            inside.add(name)
            order.append(name)
            if name in ("s1", "s2"):
                await together.wait()  # passes only when both are inside
            await asyncio.sleep(0.1)
            assert not exclusive or inside == {name}
            inside.remove(name)

    async with asyncio.timeout(LONG_S):
        await asyncio.gather(
            work("s1", False), work("s2", False), work("x", True), work("s3", False)
        )
    assert order[2:] == ["x", "s3"]  # who wants it alone is not overtaken for ever


@pytest.mark.parametrize("somebody_waits", [True, False])
async def test_turns_that_overlap_without_end_let_another_editor_through_when_one_waits(
    somebody_waits: bool, tmp_path: Path, quiet_gpu: Neighborhood, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel_lsp.evaluator.sharing.device_lock.MAX_HOLD_S", 0.0)
    ours, other = (DeviceSharing(rules(tmp_path), neighborhood=quiet_gpu) for _ in range(2))
    order: list[str] = []

    async def work(device_sharing: DeviceSharing, name: str) -> None:
        async with device_sharing.turn("cuda", exclusive=False, report=lambda said: waiting.set()):
            order.append(name)

    waiting = asyncio.Event()
    async with asyncio.timeout(LONG_S):
        async with ours.turn("cuda", exclusive=False):
            tasks = [asyncio.create_task(work(other, "other"))] if somebody_waits else []
            if tasks:
                await waiting.wait()
            tasks.append(asyncio.create_task(work(ours, "ours")))
            await asyncio.wait(tasks[-1:], timeout=0.3 if somebody_waits else LONG_S)
            assert tasks[-1].done() is not somebody_waits
        await asyncio.gather(*tasks)
    assert order == (["other", "ours"] if somebody_waits else ["ours"])


async def test_trials_on_a_cpu_and_the_interpreter_wait_for_nobody(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    ours = DeviceSharing(rules(tmp_path))
    async with asyncio.timeout(LONG_S), ours.turn("cpu", exclusive=False), ours.turn("interpreter"):
        pass


async def test_a_folder_that_cannot_hold_a_lock_is_no_reason_not_to_measure(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("a file where the folder should be")
    async with asyncio.timeout(LONG_S), DeviceSharing(rules(tmp_path)).turn("cpu") as turn:
        assert "load" in turn.states["begin"]


# --- neighbors -----------------------------------------------------------------------------------

SHARE_PERCENT = 5
"""Of a core: all that a process that computes without a rest may get where many others do."""
NEIGHBOR = """
import sys, time
held = open(sys.argv[1])
while sys.argv[2] == "busy": pass
time.sleep(600)
"""


@pytest.fixture
def compute_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that plays /dev/nvidia-uvm."""
    path = tmp_path / "nvidia-uvm"
    path.touch()
    monkeypatch.setattr(nvml, "COMPUTE_DEVICE", str(path))
    return path


@pytest.fixture
def quiet_gpu(compute_device: Path) -> Neighborhood:
    """A GPU without NVML and without neighbors."""
    return Neighborhood(None)


@pytest.fixture
def neighbor(compute_device: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Starts a process that computes on the GPU and is no descendant of ours."""
    monkeypatch.setattr(device_sharing, "BUSY_CPU_PERCENT", SHARE_PERCENT)
    started: list[int] = []

    def start(what: str, **more: str) -> int:
        command = '"$@" >/dev/null 2>&1 & echo $!'
        argv = [
            "sh",
            "-c",
            command,
            "sh",
            sys.executable,
            "-c",
            NEIGHBOR,
            str(compute_device),
            what,
        ]
        environment = {key: value for key, value in os.environ.items() if key != nvml.MARK} | more
        done = subprocess.run(argv, env=environment, capture_output=True, check=True)
        started.append(int(done.stdout))
        return started[-1]

    yield start
    for pid in started:
        os.kill(pid, signal.SIGKILL)


async def look_for(
    neighborhood: Neighborhood, enough: Callable[[tuple[Neighbor, ...]], Any]
) -> Any:
    """What is seen once ``enough`` holds: processes need time to start."""
    async with asyncio.timeout(LONG_S):
        while not enough(seen := neighborhood.look()):  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.1)
    return seen


async def test_a_foreign_process_is_told_from_our_own(
    compute_device: Path, neighbor: Callable[..., int], quiet_gpu: Neighborhood
) -> None:
    pid = neighbor("idle")
    with compute_device.open() as held, subprocess.Popen(["sleep", "60"], stdin=held) as child:  # noqa: ASYNC220
        assert await look_for(quiet_gpu, lambda seen: [n.pid for n in seen] == [pid])
        assert {pid, child.pid, os.getpid()} <= nvml.compute_processes()
        child.kill()


async def test_what_another_editor_has_started_is_no_neighbor(
    neighbor: Callable[..., int], quiet_gpu: Neighborhood
) -> None:
    pid = neighbor("idle", **{nvml.MARK: "zygote"})
    async with asyncio.timeout(LONG_S):
        while pid not in nvml.compute_processes():  # noqa: ASYNC110 - what is waited for is a process
            await asyncio.sleep(0.05)
    assert nvml.is_ours(pid) and quiet_gpu.look() == ()


async def test_cpu_time_tells_a_busy_neighbor_from_a_resting_one(
    neighbor: Callable[..., int], quiet_gpu: Neighborhood
) -> None:
    busy, resting = neighbor("busy"), neighbor("idle")

    def both_known(seen: tuple[Neighbor, ...]) -> bool:
        shares = {n.pid: n.cpu_percent for n in seen}
        return (shares.get(busy) or 0) >= device_sharing.BUSY_CPU_PERCENT and shares.get(
            resting
        ) == 0

    seen = await look_for(quiet_gpu, both_known)
    (words,) = busy_before(seen, None, sees_all=False)
    assert words.startswith(f"pid {busy} python") and words.endswith("% CPU)")


async def test_a_busy_neighbor_is_waited_for(
    tmp_path: Path, neighbor: Callable[..., int], quiet_gpu: Neighborhood
) -> None:
    pid, said = neighbor("busy"), list[Progress]()
    await look_for(quiet_gpu, lambda seen: any((n.cpu_percent or 0) >= SHARE_PERCENT for n in seen))

    async def wait() -> float:
        async with DeviceSharing(rules(tmp_path), neighborhood=quiet_gpu).turn(
            "cuda", report=said.append
        ) as turn:
            return turn.waited_s

    task = asyncio.create_task(wait())
    await until(lambda: said)
    assert said[0].message.startswith(f"waiting for the GPU: pid {pid} python")
    os.kill(pid, signal.SIGSTOP)  # still there, still with its context, and resting
    assert await asyncio.wait_for(task, LONG_S) > 0


@pytest.mark.parametrize("way", [{"when_busy": "skip"}, {"wait_s": 0.0}])
async def test_who_may_not_wait_is_told_why_it_was_not_judged(
    tmp_path: Path, neighbor: Callable[..., int], quiet_gpu: Neighborhood, way: dict[str, Any]
) -> None:
    pid = neighbor("busy")
    await look_for(quiet_gpu, lambda seen: any((n.cpu_percent or 0) >= SHARE_PERCENT for n in seen))
    with pytest.raises(
        EvaluationError, match=f"could not judge: the GPU is busy with pid {pid}"
    ) as refused:
        async with DeviceSharing(rules(tmp_path, **way), neighborhood=quiet_gpu).turn("cuda"):
            raise AssertionError("it was let in")
    assert "gpu_when_busy" in str(refused.value)
    assert LockFiles(str(tmp_path), device_key("cuda", None)).holder() is None


async def test_a_neighbor_that_appears_ends_the_turn_and_the_work_is_repeated(
    tmp_path: Path, neighbor: Callable[..., int], quiet_gpu: Neighborhood
) -> None:
    ours = DeviceSharing(rules(tmp_path), neighborhood=quiet_gpu)
    said, tries, ended = list[Progress](), list[int](), list[bool]()

    async def work() -> str:
        tries.append(0)
        async with ours.turn("cuda", report=said.append):
            if len(tries) > 1:
                return "undisturbed"
            pid = neighbor("idle")
            try:
                await asyncio.sleep(LONG_S)
            finally:
                ended.append(True)
                os.kill(pid, signal.SIGSTOP)
        raise AssertionError("nobody ended it")

    async with asyncio.timeout(LONG_S):
        assert await ours.persist(work, said.append) == "undisturbed"
    assert len(tries) == 2 and ended
    assert any("became busy" in progress.message for progress in said)


async def test_a_disturbed_turn_is_not_repeated_where_nobody_waits(
    tmp_path: Path, neighbor: Callable[..., int], quiet_gpu: Neighborhood
) -> None:
    ours = DeviceSharing(rules(tmp_path, when_busy="skip"), neighborhood=quiet_gpu)

    async def work() -> None:
        async with ours.turn("cuda"):
            neighbor("idle")
            await asyncio.sleep(LONG_S)

    with pytest.raises(Disturbed, match="the GPU became busy with pid"):
        await ours.persist(work)


async def test_ignoring_neighbors_leaves_a_note_for_the_evidence(
    tmp_path: Path, neighbor: Callable[..., int], quiet_gpu: Neighborhood
) -> None:
    async with DeviceSharing(rules(tmp_path, when_busy="ignore"), neighborhood=quiet_gpu).turn(
        "cuda"
    ) as turn:
        pid = neighbor("busy")
        await until(lambda: turn.notes)
    assert turn.notes[0].startswith(f"pid {pid} ") and turn.disturbed_by is None


async def test_a_cancellation_of_somebody_else_stays_one(
    tmp_path: Path, quiet_gpu: Neighborhood
) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with DeviceSharing(rules(tmp_path), neighborhood=quiet_gpu).turn("cuda"):
            inside.set()
            await asyncio.sleep(LONG_S)

    task = asyncio.create_task(work())
    await asyncio.wait_for(inside.wait(), LONG_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TimeoutError):
        async with (
            DeviceSharing(rules(tmp_path), neighborhood=quiet_gpu).turn("cuda"),
            asyncio.timeout(0.05),
        ):
            await asyncio.sleep(LONG_S)


def test_who_is_busy_while_nothing_of_ours_runs() -> None:
    counted = [Neighbor(pid=1, name="a", sm_percent=9), Neighbor(pid=2, name="b", sm_percent=10)]
    assert busy_before(counted, 100, sees_all=True) == ["pid 2 b (10 %)"]
    silent = [Neighbor(pid=3, name="c", cpu_percent=100)]
    assert busy_before(silent, 9, sees_all=True) == []  # the GPU rests, whatever the CPU does
    assert busy_before(silent, 10, sees_all=True) == ["pid 3 c (100 % CPU)"]
    assert busy_before(silent, None, sees_all=True) == ["pid 3 c (100 % CPU)"]
    assert busy_before([Neighbor(pid=4, name="d")], None, sees_all=True) == []


def test_use_by_nobody_visible_is_another_containers_unless_every_process_is_seen() -> None:
    assert busy_before([], 85, sees_all=False) == ["a process of another container (85 %)"]
    assert busy_before([], 85, sees_all=True) == []  # a desktop: drawing is no compute
    assert busy_before([], None, sees_all=False) == []


def test_who_is_busy_while_we_are() -> None:
    resting, newcomer = Neighbor(pid=5, name="a", cpu_percent=3), Neighbor(pid=6, name="b")
    assert busy_during([resting], frozenset({5})) == []
    assert busy_during([resting, newcomer], frozenset({5})) == ["pid 6 b"]
    assert busy_during([Neighbor(pid=6, name="b", sm_percent=0)], frozenset()) == []
    assert busy_during([Neighbor(pid=5, name="a", cpu_percent=50)], frozenset({5})) == [
        "pid 5 a (50 % CPU)"
    ]


# --- NVML ----------------------------------------------------------------------------------------


class Scripted:
    """NVML of a machine that is not here. What is not set is not supported."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: Any) -> Any:
            key = name.removeprefix("nvmlDeviceGet").removeprefix("nvmlSystemGet")
            if key not in self._answers:
                raise Scripted.NVMLError("Not Supported")
            return self._answers[key]

        return ask


def test_a_driver_that_answers_nothing_is_unknown_everywhere() -> None:
    gpu = Gpu(Scripted(), None)
    assert gpu.pids() is None and gpu.utilization() is None and gpu.memory_mb() is None
    assert gpu.sm_percents() == {} and set(gpu.sample().values()) == {None}


def test_a_sample_has_units_and_words() -> None:
    memory = SimpleNamespace(free=3 << 30, total=8 << 30)
    answers = {
        "ClockInfo": 1980,
        "PowerUsage": 345_678,
        "MemoryInfo": memory,
        "DriverVersion": "580.1",
    }
    sample = Gpu(Scripted(**answers, CurrentClocksThrottleReasons=4 + 32), None).sample()
    assert sample["power_w"] == 345.7 and sample["free_mb"] == 3072 and sample["sm_mhz"] == 1980
    assert (
        sample["throttle_reasons"] == ["power_cap", "software_thermal"]
        and sample["driver"] == "580.1"
    )


def test_only_fresh_samples_of_a_process_count_and_the_newest_of_them() -> None:
    now = int(time.time() * 1e6)
    rows = ((7, now - 10, 40), (7, now - 500_000, 90), (8, now - 60_000_000, 99))
    samples = [SimpleNamespace(pid=p, timeStamp=when, smUtil=share) for p, when, share in rows]
    assert Gpu(Scripted(ProcessUtilization=samples), None).sm_percents() == {7: 40}


def test_the_drivers_numbers_are_believed_where_they_are_ours(
    compute_device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = SimpleNamespace(pid=1)
    gpu = Gpu(Scripted(ComputeRunningProcesses=[foreign]), None)
    monkeypatch.setattr(nvml, "FIRST_PID_NAMESPACE", nvml._pid_namespace())
    assert [n.pid for n in Neighborhood(gpu).look()] == [1] and Neighborhood(gpu).sees_all
    monkeypatch.setattr(nvml, "FIRST_PID_NAMESPACE", "another")
    assert Neighborhood(gpu).look() == () and not Neighborhood(gpu).sees_all
    ours = Gpu(Scripted(ComputeRunningProcesses=[foreign, SimpleNamespace(pid=os.getpid())]), None)
    # Ours does not compute: a foreign one has its number by chance.
    assert Neighborhood(ours).look() == ()
    with compute_device.open():
        assert [n.pid for n in Neighborhood(ours).look()] == [1]  # one of ours proves the numbering


def test_a_child_is_told_of_a_memory_limit_only_when_there_is_one(tmp_path: Path) -> None:
    assert DeviceSharing(rules(tmp_path)).environment == {}
    assert DeviceSharing(rules(tmp_path, memory_mb=512)).environment == {
        "KERNEL_LSP_GPU_MEMORY_MB": "512"
    }


def test_the_lowest_priority_reaches_the_whole_group() -> None:
    argv = ["sh", "-c", "sleep 60 & echo $!; wait"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        inner = int(process.stdout.readline())
        device_sharing.lower_priority(process.pid)
        assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in (process.pid, inner)] == [19, 19]
        assert os.sched_getscheduler(process.pid) == os.SCHED_BATCH
        if shutil.which("ionice"):
            said = subprocess.run(
                ["ionice", "-p", str(inner)], capture_output=True, text=True, check=True
            )
            assert said.stdout.strip() == "idle"
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("value", "first"),
    [
        (None, "0"),
        ("", None),
        ("-1", None),
        ("2,0", "2"),
        ("GPU-1a, GPU-2b", "GPU-1a"),
        ("MIG-3", "MIG-3"),
    ],
)
def test_the_first_visible_device_is_meant(value: str | None, first: str | None) -> None:
    assert nvml.visible({} if value is None else {"CUDA_VISIBLE_DEVICES": value}) == first


def test_a_machine_without_nvml_says_so_and_what_that_means() -> None:
    found = nvml.find({})
    if isinstance(found, Gpu):
        pytest.skip("this machine has NVML")
    assert "recognized by their CPU time" in found


def test_status_takes_nothing_and_tells_what_was_used(tmp_path: Path, compute_device: Path) -> None:
    settings = Settings(data_dir=str(tmp_path))
    found = nvml.find()
    key = device_key("cuda", found if isinstance(found, Gpu) else None)
    LockFiles(str(tmp_path), key).ledger.add(time.time() - 90, 90)
    status = device_sharing.status(settings)
    assert status.used_minutes == 1.5 and status.holder is None
    assert (status.gpu is None) == (status.problem is not None)


@pytest.mark.parametrize("uuids", [("GPU-aa", "GPU-bb"), (None, None)], ids=["NVML", "no NVML"])
def test_shards_on_other_gpus_of_one_machine_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uuids: tuple[str | None, ...]
) -> None:
    locks = []
    for index, uuid in enumerate(uuids):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(index))
        seen: Any = SimpleNamespace(uuid=uuid) if uuid else None
        locks.append(LockFiles(str(tmp_path), device_key("cuda", seen)).lock)
    with locks[0].acquire(timeout=0), locks[1].acquire(timeout=0):
        assert locks[0].lock_file != locks[1].lock_file


def test_children_of_what_another_editor_has_started_are_no_neighbors_either() -> None:
    """Another shard's workers, whose own environment may be closed to us."""
    start = (
        "import subprocess; print(subprocess.Popen(['sleep', '60'], env={}, stdout=-3).pid, "
        "flush=True)"
    )
    code = f"{start}; input()"
    for mark in ({}, {nvml.MARK: "zygote"}):
        environment = {"PATH": os.environ["PATH"], **mark}
        with subprocess.Popen(
            ["setsid", sys.executable, "-c", code], env=environment, stdin=-1, stdout=-1, text=True
        ) as parent:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            try:
                ours = _as_stranger(child)
            finally:
                os.kill(child, signal.SIGKILL)
                parent.kill()
        assert ours == bool(mark)


def _as_stranger(pid: int) -> bool:
    """What a process that started none of this says."""
    code = f"from kernel_lsp.evaluator.sharing import nvml; print(nvml.is_ours({pid}))"
    return (
        subprocess.run([sys.executable, "-c", code], stdout=-1, text=True, check=True).stdout
        == "True\n"
    )
