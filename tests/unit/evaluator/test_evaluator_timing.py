"""What timed rounds give to programs and take from them, on the CPU's clock."""

import importlib
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator import devices  # noqa: E402
from kernel_lsp.evaluator.callees import Callee  # noqa: E402
from kernel_lsp.evaluator.devices.base import ColdCall  # noqa: E402
from kernel_lsp.evaluator.running import compiling, timer, timing  # noqa: E402
from kernel_lsp.evaluator.running.outputs import apart, norms_of  # noqa: E402
from kernel_lsp.evaluator.running.time_box import Slow, time_box  # noqa: E402

pytestmark = pytest.mark.torch


def arguments(seed: int) -> list:
    draw = torch.Generator().manual_seed(seed)
    strided = torch.rand(5, 3, generator=draw).T
    expanded = torch.rand(1, 4, generator=draw).expand(6, 4)
    return [
        [strided, torch.randint(9, (7,), generator=draw)],
        {"b": [expanded, 2.5], "e": torch.zeros(0, 3), "h": torch.rand(3, generator=draw).half()},
    ]


def rounds(**providers) -> timing.InterleavedRounds:
    sets = [[[torch.full((32,), float(number + 1))], {}] for number in range(3)]
    made = timing.InterleavedRounds(devices.of("cpu"), sets, [1, 2, 3], grad=False)
    for name, call in providers.items():
        made.add(name, Callee(call))
    return made


def test_inputs_keep_values_layouts_and_kinds_wherever_they_are_put():
    sets = [arguments(1), arguments(2)]
    arena = timing.Arena(sets, "cpu", 2**16)
    for offset in (0, 512, 2**16):
        (strided, integers), named = arena.fill(1, 0.5, offset)
        (was, same), by_name = sets[1]
        assert torch.equal(strided, was * 0.5) and strided.stride() == was.stride()
        assert torch.equal(integers, same) and integers.dtype == same.dtype
        assert torch.equal(named["b"][0], by_name["b"][0] * 0.5) and named["b"][0].stride() == (
            0,
            1,
        )
        assert named["b"][1] == 2.5 and named["e"].shape == (0, 3)
        assert torch.equal(named["h"], by_name["h"] * 0.5) and named["h"].dtype == torch.float16


def test_inputs_do_not_overlap_and_lie_elsewhere_in_the_next_round():
    arena = timing.Arena([arguments(1)], "cpu", 2**20)
    (strided, integers), _ = arena.fill(0, 1.0, 512)
    assert integers.data_ptr() - strided.data_ptr() == 512
    places = {
        arena.fill(0, 1.0, arena.offset(random.Random(n)))[0][0].data_ptr() for n in range(50)
    }
    assert len(places) > 40 and all(place % 64 == 0 for place in places)


def test_an_input_that_carries_gradients_is_a_leaf():
    weight = torch.ones(3, requires_grad=True)
    (made,), _ = timing.Arena([[[weight], {}]], "cpu", 512).fill(0, 2.0, 0)
    assert made.requires_grad and made.is_leaf and made.tolist() == [2.0, 2.0, 2.0]


def test_every_provider_of_a_round_gets_the_same_values_also_after_one_that_overwrites_them():
    seen = {"eager": [], "candidate": []}

    def record(name):
        def call(x):
            seen[name].append((x.data_ptr(), float(x[0])))
            return x.mul_(0)

        return call

    measured = rounds(eager=record("eager"), candidate=record("candidate")).run(0.05, 2)
    assert len(measured.times_ms["eager"]) >= timing.MIN_ROUNDS
    timed = {name: list(dict.fromkeys(calls)) for name, calls in seen.items()}
    assert timed["eager"] == timed["candidate"]
    assert all(value > 0 for _, value in timed["eager"])
    assert len(timed["eager"]) == len(measured.times_ms["eager"])


def test_each_of_two_providers_runs_first_equally_often():
    first = Counter()
    order = []

    def named(name):
        return lambda x: order.append(name)

    made = rounds(a=named("a"), b=named("b"), candidate=lambda x: x + 1)
    for number in range(40):
        first[min(("a", "b"), key=made._order(number).index)] += 1
    assert first["a"] == first["b"] == 20


def test_kept_outputs_belong_to_the_values_that_are_named():
    measured = rounds(eager=torch.sin, candidate=torch.sin).run(0.05, 4)
    assert len(measured.checks) == 4 + 1  # and the worst
    for kept in measured.checks:
        value = torch.full((32,), float(kept.set + 1)) * kept.scale
        assert torch.equal(kept.output, torch.sin(value))
        assert timing.SCALES[0] <= kept.scale <= timing.SCALES[1]


def test_times_are_positive_and_lie_inside_what_the_host_sees():
    measured = rounds(eager=torch.sin, candidate=torch.cos).run(0.05, 1)
    for name in ("eager", "candidate"):
        triples = zip(
            measured.times_ms[name], measured.spans_ms[name], measured.outside_ms[name], strict=True
        )
        assert all(0 < span <= call and span <= outside for call, span, outside in triples)


def test_a_device_without_graphs_has_no_device_times():
    made = rounds(eager=torch.sin, candidate=torch.cos)
    assert made.replay(0.05) == {} and made.notes == []


def test_a_reference_alone_is_timed_often_enough_for_quantiles():
    assert timing.MIN_ROUNDS <= len(rounds(eager=torch.sin).alone("eager")) <= timing.ALONE


def test_a_call_that_does_nothing_now_and_then_is_among_what_is_checked():
    calls = Counter()

    def lazy(x):
        calls["all"] += 1
        return torch.zeros_like(x) if calls["all"] % 7 == 0 else x.sin()

    made = rounds(eager=torch.sin, candidate=lazy)
    worst = [made.run(0.1, 1).checks[-1].output for _ in range(5)]
    assert any(not output.any() for output in worst)


@pytest.mark.parametrize(
    ("one", "other", "far"),
    [(2.0, 1.0, 0.5), (0.0, 0.0, 0.0), (0.0, 3.0, 1.0), (float("inf"), float("inf"), 0.0),
     (float("nan"), float("nan"), 0.0), (float("nan"), 1.0, float("inf")),
     (1.0, float("inf"), float("inf"))],
)  # fmt: skip
def test_norms_are_compared_also_when_they_are_not_finite(one, other, far):
    assert apart(one, other) == far


@pytest.mark.parametrize(
    ("values", "size"),
    [
        (torch.tensor([True, False, True, True, True]), 2.0),
        (torch.tensor([3, -4]), 5.0),
        (torch.tensor([3 + 4j]), 5.0),
        (torch.full((4,), 60000.0, dtype=torch.float16), 120000.0),
        (torch.tensor([3.0, 4.0]).to(torch.float8_e4m3fn), 5.0),
        (torch.zeros(0), 0.0),
    ],
)
def test_outputs_of_every_kind_have_a_norm(values, size):
    assert norms_of([values]) == [pytest.approx(size)]


def test_a_launch_that_read_short_beside_others_still_counts_in_every_round(monkeypatch):
    """Warm-up may be disturbed; rounds are not: what Python takes 50 ms to start is never timed
    shorter."""
    made = rounds(eager=lambda x: x + 1, candidate=lambda x: x + 1)
    slow = False
    monkeypatch.setattr(type(made.device), "launch", lambda *_: 50.0 if slow else 0.0)
    for name in made.providers:
        made.warm_up(name)
    slow = True
    measured = made.run(0.2, checks=1)
    assert all(ms >= 50.0 for ms in measured.times_ms["candidate"])
    assert len(measured.times_ms["candidate"]) > timing.PROBES
    assert statistics.median(measured.spans_ms["candidate"]) < 50.0


def test_a_sample_that_the_host_queued_late_is_taken_again(monkeypatch):
    """The device's time of a late call holds the host's: 9 ms here, and 1 ms where the host was
    ahead."""
    made = rounds(eager=torch.sin)
    made.device.lead_ms = 1.0
    taken = iter([ColdCall(9.0, 9.5, 2.0), ColdCall(1.0, 2.0, 0.5), ColdCall(7.0, 8.0, 0.5)])
    monkeypatch.setattr(type(made.device), "sample", lambda *_: (next(taken), None))
    assert made._sample("eager", 0, 1.0, 0)[0].ms == 1.0


@pytest.mark.parametrize(
    ("lead_ms", "takes"),
    [(1.0, 1 + timing.RETAKES), (timing.MAX_LEAD_MS, 1)],
    ids=["late", "hopeless"],
)
def test_a_program_that_is_always_late_is_timed_all_the_same(monkeypatch, lead_ms, takes):
    made, seen = rounds(eager=torch.sin), Counter()
    made.device.lead_ms = lead_ms

    def sample(*_):
        seen["takes"] += 1
        return ColdCall(9.0, 9.5, 8.0), None

    monkeypatch.setattr(type(made.device), "sample", sample)
    assert made._sample("eager", 0, 1.0, 0)[0].ms == 9.0
    assert seen["takes"] == takes


def test_the_fastest_of_a_few_launches_counts(monkeypatch):
    made = rounds(eager=torch.sin)
    taken = iter([0.05, 0.02, 0.04])
    monkeypatch.setattr(type(made.device), "launch", lambda *_: next(taken))
    assert made._launch("eager", 0, 1.0, 0) == 0.02


def test_a_time_box_ends_what_takes_long():
    start = time.perf_counter()
    with pytest.raises(Slow), time_box(0.5):
        while True:
            pass
    assert time.perf_counter() - start >= 0.4


STANDS_STILL = """
import os, signal, time
from kernel_lsp.evaluator.running.time_box import time_box
with time_box(0.6):
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.1)
"""


def test_standing_still_is_no_time_in_a_time_box():
    """A child stops itself; this process lets it go on a second later."""
    child = subprocess.Popen([sys.executable, "-c", STANDS_STILL])
    os.waitpid(child.pid, os.WUNTRACED)
    time.sleep(1.0)
    child.send_signal(signal.SIGCONT)
    assert child.wait(60) == 0


def test_what_torch_compile_made_must_work_at_other_addresses_too(monkeypatch):
    """On an H200 three kernels read illegal memory only then, and their candidates were blamed."""

    def compiled(target):
        def call(x):
            if x.storage_offset():
                raise RuntimeError("an illegal memory access")
            return target(x)

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    made = rounds(eager=torch.sin)
    made.add_compiled(Callee(torch.sin), 60)
    assert list(made.providers) == ["eager"]
    assert made.notes == ["torch.compile failed (RuntimeError) and is no baseline here"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("candidate", "timing the candidate raised RuntimeError"),
     ("compile", "timing the candidate (while its baseline compile was called) raised "
                 "RuntimeError")],
)  # fmt: skip
def test_an_error_while_warming_up_says_who_was_called(monkeypatch, name, said):
    def broken(x):
        raise RuntimeError("lost")

    made = timer.Timer("cpu")
    made.clock = rounds(**{"eager": torch.sin, "compile": torch.sin} | {name: broken})
    made.callee = Callee(broken if name == "candidate" else torch.sin)
    made.state = {}
    monkeypatch.setattr(made, "load", lambda message, blobs: {"ok": True})
    assert made.load_and_warm({}, [])["error"].startswith(said)


def test_compilers_are_gone_when_the_time_of_torch_compile_is_over():
    """Several run side by side, and a candidate is not blamed for those that are left."""
    inductor = importlib.import_module("torch._inductor.config")
    pool = importlib.import_module("torch._inductor.async_compile").AsyncCompile.pool
    before, ran = inductor.compile_threads, []

    def compile_one() -> None:
        subprocess.run(["sleep", "0.6"], check=True)
        ran.append(True)

    with pytest.raises(Slow), compiling.side_by_side("cpu"), time_box(0.2):
        if inductor.compile_threads < 2:
            pytest.skip("one processor")
        for _ in range(12):
            pool().submit(compile_one)
        time.sleep(30)
    assert 0 < len(ran) < 12  # what had begun has ended, and nothing else begins
    assert inductor.compile_threads == before and not pool.cache_info().currsize


def test_kernels_begin_with_a_header_that_is_compiled_once(monkeypatch, tmp_path):
    """A compiler reads it for each kernel else, four fifths of its time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    code = importlib.import_module("torch._inductor.codecache")
    before = code._precompile_header, code._HEADER_DIR
    text = f'#include <{code._get_cpp_prefix_header("cpu")}>\nextern "C" void kernel(float* out) {{'
    old = tmp_path / "headers" / "of-another-compiler.h.gch"
    old.parent.mkdir()
    old.touch()

    def compile_one(wanted: bool, body: str) -> list:
        with compiling.common_header("cpu", wanted) as made:
            kernel = code.CppPythonBindingsCodeCache.load_pybinding(["float*"], text + body)
        out = torch.zeros(1)
        kernel(out)
        assert out.item() == 7
        return made

    (header,) = compile_one(True, "*out = 7;}")
    assert header.parent == old.parent and header.stat().st_size > 2**20 and not old.exists()
    code._precompile_header.cache_clear()  # as in another process
    assert compile_one(True, "*out = 6 + 1;}") == []
    header.unlink()
    assert compile_one(False, "*out = 7;}") == []  # found by its name, with no header there
    assert (code._precompile_header, code._HEADER_DIR) == before


def test_where_no_header_can_be_compiled_kernels_are_compiled_without(monkeypatch, tmp_path):
    def fails(*command):
        raise FileNotFoundError("openssl")

    monkeypatch.chdir(tmp_path)
    code = importlib.import_module("torch._inductor.codecache")
    monkeypatch.setattr(code, "_precompile_header", fails)
    with compiling.common_header("cpu", True) as made:
        assert code._precompile_header("header", "command") == "" and not made
    with compiling.common_header("cuda", True):
        assert code._precompile_header is fails
