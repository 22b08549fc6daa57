"""What several processes saw of one program, as one recording."""

from typing import Any

from kernel_lsp.workloads.merging import merge


def way(calls: int, seconds: float, timed: int | None = None, **more: Any) -> dict[str, Any]:
    argument = {"name": "x", "dtype": "float32", "shape": [8, 4]}
    return {
        "calls": calls,
        "timed": calls if timed is None else timed,
        "seconds": seconds,
        "arguments": [{**argument, **more.pop("argument", {})}],
        **more,
    }


def site(target: str, *ways: dict[str, Any], kind: str = "module") -> dict[str, Any]:
    calls = sum(one["calls"] for one in ways)
    return {"kind": kind, "target": target, "calls": calls, "ways": list(ways)}


def part(*sites: dict[str, Any], elapsed: float = 10.0, **more: Any) -> dict[str, Any]:
    given = {"device": "cpu", "versions": {"torch": "2"}, "notes": [], "elapsed_s": elapsed}
    return {**given, "sites": list(sites), **more}


def test_targets_and_ways_are_ordered_by_share_then_calls_then_name() -> None:
    merged = merge(
        [
            part(
                site("b.py::B", way(4, 1.0)),
                site("a.py::A", way(4, 1.0)),
                site("c.py::C", way(9, 1.0)),
                site("d.py::D", way(1, 3.0)),
                site("e.py::E", way(50, 0.0, timed=0)),
            )
        ],
        "train",
    )
    expected = ["d.py::D", "c.py::C", "a.py::A", "b.py::B", "e.py::E"]
    assert [one["target"] for one in merged.seen] == expected
    assert [one["target"] for one in merged.ways] == expected
    assert [one.get("share") for one in merged.seen] == [0.3, 0.1, 0.1, 0.1, None]
    assert "mean_us" not in merged.seen[-1] and merged.seen[-1]["calls"] == 50


def test_ranks_that_do_the_same_count_as_one_program() -> None:
    one = part(site("a.py::A", way(4, 2.0)))
    merged = merge([one, one], "train")
    assert merged.processes == 2 and merged.elapsed_s == 20.0
    (way_of_both,) = merged.ways
    assert (way_of_both["calls"], way_of_both["share"]) == (8, 0.2)
    assert way_of_both["mean_us"] == 500_000.0
    assert way_of_both["name"] == "train f32[8,4]"


def test_of_calls_that_were_not_all_timed_the_mean_stands_for_the_rest() -> None:
    merged = merge([part(site("a.py::A", way(100, 0.1, timed=10)))], "train")
    assert merged.ways[0]["mean_us"] == 10_000.0 and merged.ways[0]["share"] == 0.1
    mixed = merge(
        [
            part(
                site(
                    "a.py::A",
                    way(10, 1.0, training=True),
                    way(10, 0.0, timed=0, training=False),
                )
            )
        ],
        "train",
    )
    assert mixed.seen[0]["share"] == 0.2  # twice the calls of the way that was timed
    assert [one["name"] for one in mixed.ways] == ["train train f32[8,4]", "train eval f32[8,4]"]


def test_a_share_is_at_most_one_and_unknown_where_no_time_passed() -> None:
    assert merge([part(site("a.py::A", way(1, 30.0)))], "t").ways[0]["share"] == 1.0
    assert "share" not in merge([part(site("a.py::A", way(1, 3.0)), elapsed=0.0)], "t").ways[0]
    assert merge([], "t").ways == [] and merge([], "t").versions == {}


def test_ways_that_differ_in_numbers_alone_are_one_and_others_are_two() -> None:
    low = way(1, 1.0, argument={"alignment": 16, "values": numbers(0.0, 1.0)})
    high = way(1, 1.0, argument={"alignment": 4, "values": numbers(0.4, 3.0, low=-2.0)})
    (merged,) = merge([part(site("a.py::A", low)), part(site("a.py::A", high))], "t").ways
    (argument,) = merged["arguments"]
    assert argument["alignment"] == 4
    assert argument["values"] == {"finite": True, "zeros": 0.2, "low": -2.0, "high": 3.0}
    other = way(1, 1.0, argument={"shape": [8, 5]})
    assert len(merge([part(site("a.py::A", low, other))], "t").ways) == 2
    kinds = [site("a.py::A", low), site("a.py::A", low, kind="function")]
    assert len(merge([part(*kinds)], "t").seen) == 2


def numbers(zeros: float, high: float, **more: float) -> dict[str, Any]:
    return {"finite": True, "zeros": zeros, "high": high, **more}


def test_a_call_that_one_process_has_kept_is_kept() -> None:
    left = part(site("a.py::A", way(1, 1.0, not_kept="too large")))
    kept = part(site("a.py::A", way(1, 1.0, snapshot="ab")))
    for parts in ([left, kept], [kept, left]):
        (merged,) = merge(parts, "t").ways
        assert merged["snapshot"] == "ab" and "not_kept" not in merged


def test_steps_are_of_the_process_that_has_most_of_them() -> None:
    few = part(steps={"optimizers": [{"steps": 2}], "batches": 9})
    many = part(steps={"optimizers": [{"steps": 2}, {"steps": 1}], "batches": 1})
    marked = part(steps={"marked": 1})
    assert merge([few, many], "t").steps == many["steps"]
    assert merge([few, marked, many], "t").steps == marked["steps"]
    assert merge([part()], "t").steps == {}


def test_devices_notes_and_files_are_named_once() -> None:
    parts = [
        part(notes=["a", "b"], files=["x.py"], device="cuda"),
        part(notes=["b"], files=["y.py", "x.py"], device=None),
    ]
    merged = merge(parts, "t")
    assert merged.notes == ("a", "b") and merged.files == ("x.py", "y.py")
    assert merged.devices == ("cuda",)
