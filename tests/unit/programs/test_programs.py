"""Whole programs: where their step's time goes, edits of them, and what a ratio of their steps
says."""

import math
import os
import random
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp import analysis, files, leftovers, scratch
from kernel_lsp.commands import programs
from kernel_lsp.errors import WorkloadError
from kernel_lsp.patching.store import Place, is_own
from kernel_lsp.programs import (
    comparing,
    composing,
    measuring,
    mirror,
    offering,
    program_edits,
    targets,
)
from kernel_lsp.programs.comparing import Agreement
from kernel_lsp.programs.measuring import AS_IS, COMPILED, MeasuredWays
from kernel_lsp.programs.mirror import Mirror
from kernel_lsp.programs.optimizing import ProgramOutcome
from kernel_lsp.programs.resuming import KeptRuns
from kernel_lsp.programs.shares import Shares
from kernel_lsp.programs.stepping import ProgramWay, StepRun
from kernel_lsp.programs.targets import ProgramTarget
from kernel_lsp.records import Interval, Snapshot, SourceEdit
from kernel_lsp.rewrite import edit
from kernel_lsp.workloads.recorder import profiling

MODEL, BLOCK, NORM, LOSS = (("__main__", name) for name in ("Model", "Block", "Norm", "Loss"))


def row(us: float, *ranges: tuple[str, str], kind: str = "forward") -> dict[str, Any]:
    return {"ranges": [list(one) for one in ranges], "kind": kind, "us": us}


def shares() -> Shares:
    """A step of 1 ms: a model of three blocks, a loss of its own, an optimizer, and a copy of
    data."""
    rows = [
        row(100.0, MODEL), row(300.0, MODEL, BLOCK), row(200.0, MODEL, BLOCK, kind="backward"),
        row(50.0, MODEL, BLOCK, NORM), row(50.0, MODEL, NORM), row(100.0, LOSS),
        row(150.0, kind="optimizer"), row(50.0, kind="other"),
    ]  # fmt: skip
    calls = {(MODEL,): 1, (MODEL, BLOCK): 3, (MODEL, BLOCK, NORM): 3, (MODEL, NORM): 1, (LOSS,): 1}
    counted = [{"ranges": [list(one) for one in ranges], "calls": n} for ranges, n in calls.items()]
    return Shares.of(
        {"device": "cuda", "total_us": 1000.0, "rows": rows, "calls": counted}, step_ms=1.25
    )


# --- shares --------------------------------------------------------------------------------------


def test_a_target_holds_what_it_calls_and_what_follows_in_the_backward_pass() -> None:
    found = shares()
    assert found.of_target(MODEL) == pytest.approx(0.7)
    assert found.of_target(BLOCK) == pytest.approx(0.55)
    assert found.of_target(NORM) == pytest.approx(0.1)
    assert found.of_kind("optimizer") == pytest.approx(0.15)
    assert found.of_nobody == pytest.approx(0.05)
    assert found.busy == pytest.approx(0.8)
    assert found.within([NORM, LOSS]) == pytest.approx(0.2)


def test_optimizers_that_take_no_time_are_not_fused_unless_the_device_waits() -> None:
    found = shares()
    assert found.would_notice_optimizers(0.1) and found.would_notice_optimizers(0.2)
    busy = replace(found, step_ms=1.0)
    assert busy.would_notice_optimizers(0.1) and not busy.would_notice_optimizers(0.2)
    assert not replace(found, device="cpu").would_notice_optimizers(0.2)


def test_roots_are_what_the_program_calls_itself_and_blocks_what_they_repeat() -> None:
    found = shares()
    assert found.roots() == [MODEL, LOSS]
    assert found.repeated(MODEL, [BLOCK, NORM]) == BLOCK
    assert found.repeated(LOSS, [BLOCK]) is None
    # The norm at the end is called in blocks as well, and is not within the block.
    assert found.is_within(BLOCK, MODEL) and not found.is_within(NORM, BLOCK)
    alone = found.alone(MODEL, [MODEL, BLOCK, NORM])
    assert alone == pytest.approx(0.1), "its blocks and norms are called more often"
    assert found.repeated(MODEL, [NORM]) == NORM, "what is compiled is a module"
    assert found.alone(MODEL, [MODEL, NORM]) == pytest.approx(0.6), "a block that is not opened"


def test_a_layer_is_the_repeated_block_and_not_a_model_that_is_called_twice() -> None:
    rows = [row(30.0, LOSS), row(40.0, LOSS, MODEL), row(900.0, LOSS, MODEL, BLOCK)]
    rows.append(row(300.0, LOSS, MODEL, BLOCK, NORM))
    calls = {(LOSS,): 1, (LOSS, MODEL): 2, (LOSS, MODEL, BLOCK): 24, (LOSS, MODEL, BLOCK, NORM): 48}
    counted = [{"ranges": [list(one) for one in ranges], "calls": n} for ranges, n in calls.items()]
    profile = {"device": "cuda", "total_us": 1270.0, "rows": rows, "calls": counted}
    found = Shares.of(profile, step_ms=1.3)
    assert found.repeated(LOSS, [MODEL, BLOCK, NORM]) == BLOCK
    assert found.repeated(LOSS, [MODEL, NORM]) == MODEL, "norms hold a quarter of it"


def test_nothing_is_shared_out_of_a_step_without_time() -> None:
    empty = Shares.of({"device": "cpu", "total_us": 0.0, "rows": [], "calls": []}, step_ms=None)
    assert empty.of_target(MODEL) == 0.0 and empty.roots() == [] and empty.busy is None


# --- edits of the program as a whole --------------------------------------------------------------

TRAINING = """\
import torch
from torch.optim import AdamW as Optimizer

def main():
    model = Model(config).to("cuda")  # é
    optimizer = Optimizer(model.parameters(), lr=3e-4)
    other = torch.optim.SGD(
        model.parameters(),
        lr=0.1,
    )
    chosen = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    starred = torch.optim.SGD(*arguments)
"""


def test_only_optimizers_that_ran_without_a_choice_become_fused() -> None:
    changed = program_edits.with_fused_optimizers(TRAINING, frozenset({"AdamW", "SGD"}))
    assert "Optimizer(model.parameters(), lr=3e-4, fused=True)" in changed
    assert "lr=0.1, fused=True,\n    )" in changed
    assert changed.count("fused=True") == 2
    assert program_edits.with_fused_optimizers(TRAINING, frozenset({"Adagrad"})) == TRAINING


@pytest.mark.parametrize(
    "argument", ["(model.parameters())", "p for p in model.parameters()", "*x"]
)
def test_an_argument_that_takes_no_other_behind_it_is_left_alone(argument: str) -> None:
    text = f"import torch\noptimizer = torch.optim.SGD({argument})\n"
    assert program_edits.with_fused_optimizers(text, frozenset({"SGD"})) == text


def test_the_line_that_compiles_stands_behind_the_one_that_constructs() -> None:
    changed = program_edits.with_compiled(TRAINING, "Model", "reduce-overhead")
    assert changed is not None
    assert (
        '.to("cuda")  # é\n    model.compile(mode="reduce-overhead")\n    optimizer' in changed
        or ('.to("cuda")\n    model.compile(mode="reduce-overhead")  # é\n' in changed)
    )
    compile(changed, "changed", "exec")
    assert "model.compile()\n" in (
        program_edits.with_compiled("model = m.Model()\n", "Model", None) or ""
    )


@pytest.mark.parametrize(
    "text",
    [
        "model = wrap(Model())\n",
        "model = Model(); other = 1\n",
        "a = Model()\nb = Model()\n",
        "x[0] = Model()\n",
        "model = Model(\n",
    ],
)
def test_where_it_is_constructed_otherwise_no_line_is_written(text: str) -> None:
    assert program_edits.with_compiled(text, "Model", None) is None


# --- which targets, and what is composed ----------------------------------------------------------


def looked(name: tuple[str, str], share: float = 0.5, **more: Any) -> ProgramTarget:
    values = {
        "path": Path("/w/train.py"),
        "qualname": name[1],
        "module": name[0],
        "share": share,
        "calls": 1,
    }
    return ProgramTarget(**{**values, **more})


def test_targets_are_left_out_with_their_reason() -> None:
    assert targets.skip_reason(looked(NORM, 0.004), [], shares()) == "below 0.5% of the step"
    assert targets.skip_reason(looked(NORM, why_not="no room"), [], None) == "no room"
    assert targets.skip_reason(looked(NORM), [], shares()) is None


def test_what_is_products_on_tensor_cores_is_looked_at_last_or_not_at_all() -> None:
    rows = [
        {**row(300.0, BLOCK), "products_us": 290.0},
        row(150.0, NORM),
        {**row(16.0, LOSS), "products_us": 16.0},
    ]
    calls = [{"ranges": [list(one)], "calls": 1} for one in (BLOCK, NORM, LOSS)]
    found = Shares.of(
        {"device": "cuda", "total_us": 1000.0, "rows": rows, "calls": calls}, step_ms=1.0
    )
    assert found.of_target(BLOCK) == pytest.approx(0.3), "its share is what it takes"
    assert found.gainable(BLOCK) == pytest.approx(0.097)
    assert found.alone(NORM, []) > found.alone(BLOCK, [])
    assert targets.skip_reason(looked(BLOCK), [], found) is None
    reason = targets.skip_reason(looked(LOSS), [], found)
    assert reason == "at most 0.5% of the step could be saved: the rest is products on tensor cores"


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", True),
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x128_16x3_tn_align4>", True),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>", True),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3", True),
        ("ampere_sgemm_128x64_tn", False),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64>", False),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3_ffma", False),
        ("triton_poi_fused_convolution_gemm_0", False),
        ("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>", False),
    ],
)
def test_products_on_tensor_cores_are_told_by_their_kernels_names(kernel: str, found: bool) -> None:
    assert profiling.is_product(kernel) is found


def test_a_fused_optimizer_is_a_variant_of_the_files_that_it_changes() -> None:
    path, other = Path("/w/train.py"), Path("/w/model.py")
    variant = composing.fuse_optimizers({path: TRAINING, other: "x = 1\n"}, frozenset({"AdamW"}))
    assert (
        variant is not None and list(variant.texts) == [path] and variant.before[path] == TRAINING
    )
    assert composing.fuse_optimizers({other: "x = 1\n"}, frozenset({"AdamW"})) is None
    both = composing.compile_outermost(
        variant, MODEL, {path: TRAINING, other: "x = 1\n"}, "default"
    )
    assert both is not None and both.compiled == "default" and "fused=True" in both.texts[path]
    assert both.name == "a fused optimizer, torch.compile"
    assert composing.compile_outermost(variant, LOSS, {path: TRAINING}, None) is None


TWO = """\
from torch import nn


class A(nn.Module):
    def forward(self, x):
        return x + 1


class B(nn.Module):
    def forward(self, x):
        return x + 2
"""


def rewritten(path: Path, name: str, number: int, imports: tuple[str, ...]) -> ProgramTarget:
    body = f"class {name}(nn.Module):\n    def forward(self, x):\n        return torch.add(x, {number})\n"
    edit = SourceEdit(qualname=name, imports=imports, target=body)
    candidate = SimpleNamespace(summary="add", edit=edit, steps=(), compiles=False)
    evaluation = SimpleNamespace(speedup=None)
    best = SimpleNamespace(id=f"of {name}", candidate=candidate, evaluation=evaluation)
    outcome: Any = SimpleNamespace(best=best)
    return looked(("model", name), path=path, qualname=name, outcome=outcome)


def against_compiler(one: ProgramTarget, on_device: float | None, whole: float) -> ProgramTarget:
    """The target, as many times as fast as torch.compile: its kernels, and all of a call."""
    known = {} if on_device is None else {"compile": SimpleNamespace(mid=on_device)}
    evaluation = SimpleNamespace(
        speedup=None, device_speedups=known, speedups={"compile": SimpleNamespace(mid=whole)}
    )
    best = SimpleNamespace(**{**vars(one.proposal), "evaluation": evaluation})
    outcome: Any = SimpleNamespace(best=best)
    return replace(one, outcome=outcome)


@pytest.mark.parametrize(
    ("a", "b", "kept"),
    [
        ((1.02, 1.4), (1.30, 1.1), ["B"]),
        ((1.02, 1.4), (1.00, 1.4), []),
        ((1.50, 0.9), (None, 1.1), ["A", "B"]),
    ],
)
def test_with_torch_compile_go_the_kernels_that_it_does_not_match(
    tmp_path: Path, a: tuple[float | None, float], b: tuple[float | None, float], kept: list[str]
) -> None:
    path, place = tmp_path / "model.py", Place(folder=tmp_path)
    path.write_text(TWO)
    mine = [
        against_compiler(rewritten(path, name, number, ()), *ratios)
        for name, number, ratios in (("A", 1, a), ("B", 2, b))
    ]
    workspace = composing.Workspace(root=tmp_path, place=place)
    (variant,) = composing.with_targets(mine, None, None, workspace)
    found = composing.unmatched(variant, None, workspace)
    assert [one.qualname for one in found.composed] == kept if found else not kept
    assert (found is variant) is (len(kept) == 2)
    if kept == ["B"]:
        assert found is not None and found.name == composing.UNMATCHED
        assert "return x + 1" in found.texts[path] and "torch.add(x, 2)" in found.texts[path]


@pytest.mark.parametrize(
    ("imports", "labels"),
    [((), ["A: add", "B: add"]), (("import torch",), ["A: add and B: add", "A: add", "B: add"])],
)
def test_edits_of_a_program_are_told_apart_and_make_up_what_was_measured(
    tmp_path: Path, imports: tuple[str, ...], labels: list[str]
) -> None:
    path, script, new = tmp_path / "model.py", tmp_path / "train.py", tmp_path / "patch.py"
    mine = [rewritten(path, "A", 1, imports), rewritten(path, "B", 2, imports)]
    text = TWO
    for one in mine:
        found = analysis.find_target(
            analysis.analyze(Snapshot(uri=path.as_uri(), text=text)), one.qualname
        )
        assert found is not None and one.edit is not None
        text = edit.apply_edit(text, found.span, one.edit)
    fused = TRAINING.replace("lr=3e-4)", "lr=3e-4, fused=True)")
    variant = composing.ProgramVariant(
        name="ours",
        texts={path: text, script: fused, new: "x = 1\n"},
        before={path: TWO, script: TRAINING},
        composed=tuple(mine),
    )
    edits = offering.edits_of(variant, tmp_path)
    assert [one.label for one in edits] == [*labels, offering.FUSED, offering.PATCHES]
    known = {
        one.qualname: (one.before, one.after) for one in offering.rewrites_of(variant, tmp_path)
    }
    texts = (TWO, text)
    assert known == {
        name: tuple(analysis.fingerprint_of(each, name) for each in texts) for name in "AB"
    }, "as the journal will see them in the files"
    changes = [change for one in edits for change in one.changes]
    for file, after in variant.texts.items():
        whole = variant.before.get(file, "")
        for change in sorted(changes, key=lambda one: -one.start):
            if change.path == str(file):
                whole = whole[: change.start] + change.new + whole[change.end :]
        assert whole == after


# --- ratios ---------------------------------------------------------------------------------------


def run(way: ProgramWay, step_ms: float, **more: Any) -> StepRun:
    return StepRun(way=way, steps_ms=(99.0, 99.0, *[step_ms] * 4), **more)


FAST, SLOW, EDITED = COMPILED[0], COMPILED[1], ProgramWay(name="ours", variant="ours")


def measured() -> MeasuredWays:
    """Rounds in which the machine becomes slower, so that times of different rounds mislead."""
    return MeasuredWays(
        runs={
            AS_IS: {0: run(AS_IS, 10.0), 1: run(AS_IS, 20.0), 2: run(AS_IS, 40.0)},
            FAST: {0: run(FAST, 8.0), 1: run(FAST, 16.0), 2: run(FAST, 32.0)},
            SLOW: {0: run(SLOW, 12.0)},
            EDITED: {1: run(EDITED, 10.0), 2: run(EDITED, 20.0)},
        }
    )


def test_a_ratio_is_of_the_rounds_that_both_have() -> None:
    found = measured()
    ratio = found.ratio(AS_IS, FAST)
    assert (
        ratio is not None and ratio.mid == pytest.approx(1.25) and ratio.low == pytest.approx(1.25)
    )
    assert found.speed(EDITED) == pytest.approx(2.0)
    once = found.ratio(AS_IS, SLOW)
    assert once is not None and once.mid == pytest.approx(10 / 12) and math.isinf(once.high)
    assert found.ratio(SLOW, EDITED) is None


def test_the_fastest_is_so_against_the_program_as_it_is() -> None:
    found = measured()
    # By its mean time the slow way, timed once before the machine became slower, would be the best.
    assert found.best_plain == FAST and found.best_edited == EDITED
    assert found.worth_more(1) == [AS_IS, FAST, EDITED]
    found.runs[EDITED][2] = run(EDITED, 20.0, failed="it ended with 1")
    assert found.best_edited is None and EDITED not in found.worth_more(1)


def test_what_is_far_slower_than_the_program_as_it_is_is_not_timed_again() -> None:
    found = measured()
    found.runs[SLOW] = {0: run(SLOW, 11.0)}
    assert found.worth_more(2) == [AS_IS, FAST, SLOW, EDITED]
    found.runs[SLOW] = {0: run(SLOW, 13.0)}
    assert found.worth_more(2) == [AS_IS, FAST, EDITED]


def test_an_edit_is_timed_again_before_one_disturbed_run_drops_it() -> None:
    def first_round(edited_ms: float) -> MeasuredWays:
        times = {AS_IS: 10.0, FAST: 8.0, SLOW: 12.0, EDITED: edited_ms}
        return MeasuredWays(runs={way: {0: run(way, ms)} for way, ms in times.items()})

    def start(way: ProgramWay, number: int) -> StepRun:
        asked.append(way)
        return run(way, again_ms[way])

    found, asked, again_ms = first_round(14.0), list[ProgramWay](), {FAST: 16.0, EDITED: 15.0}
    assert EDITED not in found.worth_more(1)
    measuring.measure_doubtful(found, start, lambda _: None)
    assert asked == [FAST, EDITED] and found.worth_more(1) == [AS_IS, FAST, EDITED]
    found, again_ms = first_round(14.0), {FAST: 16.0, EDITED: 30.0}
    measuring.measure_doubtful(found, start, lambda _: None)
    assert found.worth_more(1) == [AS_IS, FAST], "slow twice"
    asked.clear()
    measuring.measure_doubtful(first_round(9.0), start, lambda _: None)
    assert not asked, "what is near the fastest is measured with it later"


def outcome_of(found: MeasuredWays, *, is_right: bool = True) -> ProgramOutcome:
    agreements = {EDITED.name: Agreement(right=is_right, steps=())}
    return ProgramOutcome(recording=None, targets=(), measured=found, agreements=agreements)  # type: ignore[arg-type]


def four_rounds(late_ms: float, *more_ms: float) -> MeasuredWays:
    """Our edits surely beat torch.compile; its other mode, timed once or more often at the end, is
    the fastest without them by its own time."""
    times = {AS_IS: 20.0, FAST: 10.0, EDITED: 9.0}
    runs = {way: {n: run(way, ms + n / 100) for n in range(4)} for way, ms in times.items()}
    late = dict(enumerate((late_ms, *more_ms)))
    return MeasuredWays(runs={**runs, SLOW: {n: run(SLOW, ms) for n, ms in late.items()}})


def test_a_mode_that_is_timed_once_at_the_end_takes_nothing_from_a_sure_gain() -> None:
    found = outcome_of(four_rounds(9.8))
    assert found.without == SLOW and found.best == EDITED and programs.gains(found)
    assert found.beaten_by(EDITED) == FAST, "what the gain is told against"
    words = programs.gain_words(found)
    assert words is not None and words.endswith("against torch.compile")
    assert not programs.gains(outcome_of(four_rounds(9.0))), "it is as fast as our edits"
    assert not programs.gains(outcome_of(four_rounds(9.8), is_right=False))
    scattered = four_rounds(9.8, 8.8, 9.9, 9.7)
    assert scattered.rounds_together(SLOW, EDITED) == measuring.FEW
    assert not programs.gains(outcome_of(scattered)), "four rounds say that nobody knows"


def test_what_is_sure_is_offered_before_what_was_faster_once() -> None:
    found, lucky = four_rounds(9.8), replace(EDITED, name="ours, compiled", mode="default")
    found.runs[lucky] = {0: run(lucky, 8.9)}
    outcome = outcome_of(found)
    assert found.best_edited == lucky and outcome.best == EDITED and programs.gains(outcome)


def test_a_way_that_took_too_long_leaves_the_program_without_a_verdict() -> None:
    found = measured()
    outcome = outcome_of(found)
    assert programs.gains(outcome)
    found.runs[SLOW] = {0: run(SLOW, 1.0, failed="it crashed")}
    assert programs.gains(outcome), "what crashes is no alternative"
    found.runs[SLOW] = {0: run(SLOW, 1.0, failed="no step ended within 300 s", is_cut_off=True)}
    assert found.unfinished == [SLOW] and not programs.gains(outcome)


def test_edits_pay_when_the_whole_interval_is_above_one() -> None:
    def interval(low: float, mid: float) -> Interval:
        return Interval(low=low, mid=mid, high=2.0, confidence=0.99)

    assert measuring.pays(interval(1.001, 1.02))
    assert not measuring.pays(interval(0.999, 1.5)) and not measuring.pays(interval(1.001, 1.005))


def test_steady_state_begins_after_the_warm_up() -> None:
    assert run(AS_IS, 3.0).step_ms == 3.0
    assert StepRun(way=AS_IS, steps_ms=(1.0, 2.0)).step_ms is None


def test_a_way_that_failed_is_not_run_again() -> None:
    found, asked = MeasuredWays(), []

    def start(way: ProgramWay, number: int) -> StepRun:
        asked.append((way.name, number))
        return run(way, 1.0, failed="no" if way is FAST else None)

    measuring.measure(found, [AS_IS, FAST], start, lambda _: None, range(2))
    assert asked == [("as it is", 0), ("torch.compile", 0), ("as it is", 1)]
    assert found.failed(FAST) == "no" and found.best_plain == AS_IS


def test_gradients_agree_as_far_as_the_program_agrees_with_itself() -> None:
    rows = [[1.0, 1.0, -1.0]]
    near, far = [[1.0, 1.001, -1.001]], [[1.0, 1.1, -1.1]]
    assert comparing.apart(rows, near) == pytest.approx(0.001)
    assert comparing.apart(rows, [*rows, *rows]) is None
    assert comparing.apart(rows, [[1.0, math.nan, 1.0]]) == math.inf
    digests = [StepRun(way=AS_IS, digests=(one,)) for one in (rows, rows, near)]
    assert comparing.agreement(*digests, edited=StepRun(way=EDITED, digests=(near,))).right
    assert not comparing.agreement(*digests, edited=StepRun(way=EDITED, digests=(far,))).right
    assert not comparing.agreement(*digests, edited=StepRun(way=EDITED)).right, (
        "nothing was compared"
    )


def drawn(middle: float, scatter: float, seed: int) -> list[StepRun]:
    """First steps of five runs: two tensors whose products scatter around a middle."""
    draw = random.Random(seed)
    rows = [
        [[1.0, *(draw.gauss(middle * sign, scatter) for sign in (1, -1, 1, 1))] for _ in range(2)]
        for _ in range(comparing.DRAWS)
    ]
    return [StepRun(way=AS_IS, digests=(row,)) for row in rows]


def test_what_draws_otherwise_is_told_by_its_distribution() -> None:
    original = drawn(1.0, 0.1, 1)
    found = comparing.alike_by_distribution(original, drawn(1.0, 0.1, 2))
    assert found.right and "would have been seen" in found.detail, found.detail
    assert not comparing.alike_by_distribution(original, drawn(1.5, 0.1, 2)).right, "its mean"
    assert not comparing.alike_by_distribution(original, drawn(1.0, 0.9, 2)).right, "its scatter"
    blind = comparing.alike_by_distribution(drawn(1.0, 3.0, 1), drawn(1.0, 3.0, 2))
    assert not blind.right and "scatter too much to tell" in blind.detail
    assert not comparing.alike_by_distribution(original, original[:1]).right
    claims = [comparing.alike_by_distribution(original, drawn(1.0, 0.1, n)) for n in range(2, 202)]
    assert sum(not one.right for one in claims) <= 6, "the same program is called another one"


# --- copies and resuming --------------------------------------------------------------------------


def test_files_of_an_environment_within_the_workspace_are_not_its_own(tmp_path: Path) -> None:
    assert is_own(tmp_path / "model.py", tmp_path)
    assert not is_own(tmp_path / "env/lib/python3.12/site-packages/x/model.py", tmp_path)
    assert not is_own(Path("/usr/lib/x.py"), tmp_path)
    script = tmp_path / "env" / "bin" / "x.py"
    script.parent.mkdir(parents=True)
    assert is_own(script, tmp_path), "a folder of that name is no environment yet"
    (tmp_path / "env" / "pyvenv.cfg").touch()
    assert not is_own(script, tmp_path) and is_own(tmp_path / "env" / "train.py", tmp_path)


def test_a_link_to_an_installed_file_is_that_file(tmp_path: Path) -> None:
    """Written through the link, the library itself would change, for every project."""
    library = tmp_path / "env" / "site-packages" / "library.py"
    library.parent.mkdir(parents=True)
    library.touch()
    link = tmp_path / "vendored.py"
    link.symlink_to(library)
    assert not is_own(link, tmp_path) and files.installed_file(link) == library
    store = tmp_path / "cache" / "library.py"
    store.parent.mkdir()
    library.rename(store)
    library.symlink_to(store)
    assert files.installed_file(library) == library, "as its package's folder has it"
    assert files.installed_file(tmp_path / "model.py") is None


def test_a_copy_holds_the_edits_and_the_workspace_stays(tmp_path: Path) -> None:
    root = tmp_path / "work"
    (root / "package").mkdir(parents=True)
    (root / "package" / "model.py").write_text("x = 1\n")
    (root / ".git").mkdir()
    (root / "link.py").symlink_to(root / "package" / "model.py")
    with Mirror.of(root, {root / "package" / "model.py": "x = 2\n"}) as copy:
        place = copy.place(root / "package" / "model.py")
        assert place.read_text() == "x = 2\n" and not (copy.copy / ".git").exists()
        assert copy.original(place) == root / "package" / "model.py"
        assert copy.copy.is_relative_to(scratch.room().resolve()), "or a killed command leaves it"
        assert copy.words(["python", str(root / "link.py"), "-x"], root) == [
            "python",
            str(copy.copy / "link.py"),
            "-x",
        ]
    assert (root / "package" / "model.py").read_text() == "x = 1\n" and not copy.copy.exists()


def test_a_checkpoint_that_a_run_writes_is_a_copy_and_a_data_set_without_room_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "LARGE_BYTES", 10)
    monkeypatch.setattr(mirror, "MAX_BYTES", 50)
    monkeypatch.setattr(mirror, "_clone", lambda *_: False)
    root = tmp_path / "work"
    root.mkdir()
    data, checkpoint, small = (root / name for name in ("data.bin", "best.pt", "notes.txt"))
    for number, (path, size) in enumerate(((data, 40), (checkpoint, 30), (small, 5))):
        path.write_bytes(b"0" * size)
        os.utime(path, (number + 1, number + 1))
    with Mirror.of(root, {}) as copy:
        assert list(copy.linked) == [data], "it was written before the other"
        copy.place(checkpoint).write_bytes(b"1" * 30)
        copy.place(small).write_bytes(b"1")
        copy.check_linked()
        with copy.place(data).open("ab") as file:
            file.write(b"1")
        with pytest.raises(WorkloadError, match=r"has written to .*data\.bin"):
            copy.check_linked()
    assert checkpoint.read_bytes() == b"0" * 30 and small.read_bytes() == b"0" * 5


def test_an_edit_of_a_copy_follows_no_link_out_of_it(tmp_path: Path) -> None:
    """A linked folder is edited in the copy, and a program that comes by the link reads the
    edit."""
    root, outside = tmp_path / "work", tmp_path / "outside"
    for folder in (root / "source", outside):
        folder.mkdir(parents=True)
        (folder / "model.py").write_text("x = 1\n")
    (root / "lib").symlink_to(root / "source")
    (root / "elsewhere").symlink_to(outside)
    (root / "round").symlink_to(root / "round")
    with Mirror.of(root, {root / "lib" / "model.py": "x = 2\n"}) as copy:
        assert (copy.copy / "lib" / "model.py").read_text() == "x = 2\n"
        assert (copy.copy / "source" / "model.py").read_text() == "x = 2\n"
        assert (copy.copy / "elsewhere" / "model.py").read_text() == "x = 1\n"
    assert (root / "source" / "model.py").read_text() == "x = 1\n"
    with pytest.raises(WorkloadError, match="by a link"):
        Mirror.of(root, {root / "elsewhere" / "model.py": "x = 2\n"})
    assert (outside / "model.py").read_text() == "x = 1\n"


def test_a_workspace_of_any_depth_is_copied(tmp_path: Path) -> None:
    deep = tmp_path / "work"
    for _ in range(12):
        deep /= "/".join(["a"] * 100)
        deep.mkdir(parents=True)
    (deep / "model.py").write_text("x = 1\n")
    with Mirror.of(tmp_path / "work", {}) as copy:
        assert copy.place(deep / "model.py").read_text() == "x = 1\n"
    leftovers.remove(tmp_path / "work")


def test_a_run_counts_again_while_nothing_it_depends_on_has_changed(tmp_path: Path) -> None:
    kept = KeptRuns(tmp_path, fresh=False)
    script = tmp_path / "a.py"
    script.write_text("x = 1")
    one = run(EDITED, 2.0, taken={"m.A": (4, 1)}, files=(str(script),))
    kept.keep([EDITED, 0, {"a.py": "x = 1"}], one)
    kept.keep([AS_IS, 0, {}], run(AS_IS, 2.0, failed="it ended with 1"))
    again = KeptRuns(tmp_path, fresh=False)
    assert again.find([EDITED, 0, {"a.py": "x = 1"}]) == one
    assert again.find([EDITED, 1, {"a.py": "x = 1"}]) is None
    assert again.find([EDITED, 0, {"a.py": "x = 2"}]) is None
    assert again.find([AS_IS, 0, {}]) is None, "what failed is tried again"
    assert KeptRuns(tmp_path, fresh=True).find([EDITED, 0, {"a.py": "x = 1"}]) is None
    os.utime(script, (time.time() + 9, time.time() + 9))
    assert again.find([EDITED, 0, {"a.py": "x = 1"}]) is None, "what it imported is newer"
    (tmp_path / "runs.json").write_text("[")
    assert KeptRuns(tmp_path, fresh=False).find([EDITED, 0, {"a.py": "x = 1"}]) is None


def test_a_single_rewrite_says_what_it_is_of_the_step() -> None:
    speedup = Interval(low=2.0, mid=2.1, high=2.2, confidence=0.99)
    evaluation = SimpleNamespace(speedup=speedup)
    proposal = SimpleNamespace(
        evaluation=evaluation, candidate=SimpleNamespace(summary="fuse add and mul")
    )
    one = looked(NORM, 0.06, outcome=SimpleNamespace(best=proposal, note=None))
    assert programs._describe_target(one) == "2.1x here, 6% of the step: fuse add and mul"
