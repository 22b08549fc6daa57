"""The deterministic policy, against a small applier whose candidates are named by their steps."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp.agents import plan
from kernel_lsp.errors import RewriteError
from kernel_lsp.records import Candidate, Proof, Site, Step


def site(
    skill: str,
    benefit: float | None = 0.5,
    *,
    plain: bool = True,
    holds: bool = True,
    wraps: bool = False,
    **parameters: list,
) -> Site:
    proof = Proof(claim="it is sound", holds=holds, because="test")
    return Site(
        skill=skill,
        site="n",
        summary=skill,
        proofs=(proof,),
        benefit=benefit,
        plain=plain,
        wraps=wraps,
        parameters=parameters,
    )


class Applier:
    """Consumes one site per step; refuses the skills in ``broken``."""

    def __init__(self, sites: Sequence[Site], broken: Sequence[str] = ()) -> None:
        self.sites, self.broken = sites, broken
        self.unspoken: tuple[str, ...] = ()

    async def look(self, steps: Sequence[Step]) -> tuple[Site, ...]:
        if any(step.skill in self.broken for step in steps):
            raise RewriteError("refused")
        done = {step.skill for step in steps}
        return tuple(s for s in self.sites if s.skill not in done)

    async def make(self, steps: Sequence[Step]) -> Candidate:
        if any(step.skill in self.unspoken for step in steps):
            raise RewriteError("cannot be written down")
        name = "+".join(
            step.skill + "".join(f":{v}" for v in step.parameters.values()) for step in steps
        )
        return Candidate(id=name, edit=None, program="", entry="M", steps=tuple(steps))


async def names(sites: Sequence[Site], *, triton: bool, broken: Sequence[str] = ()) -> list[str]:
    applier = Applier(sites, broken)
    planner = plan.Planner(applier.make, applier.look)
    return [
        ranked_plan.candidate.id async for ranked_plan in planner.ranked_plans(sites, triton=triton)
    ]


async def test_collapses_come_before_fusions_and_the_larger_saving_first() -> None:
    sites = [site("a", 0.1), site("b", 0.9), site("f", 0.95, plain=False)]
    assert await names(sites, triton=True) == ["b+a+f", "b+a", "f", "b", "a"]


async def test_what_goes_around_a_target_comes_last_and_is_a_candidate_of_its_own() -> None:
    sites = [
        site("a", 0.1),
        site("f", 0.2, plain=False),
        site("w", 0.9, wraps=True, mode=["x", "y"]),
    ]
    found = await names(sites, triton=True)
    assert found == ["a+f+w:x", "a+f", "a+w:x", "a", "w:x", "f"]
    assert await names([sites[2]], triton=True) == ["w:x"]


async def test_the_shortest_call_comes_first_and_a_plainer_one_where_they_are_about_equal() -> None:
    """w saves nine tenths of either chain: a+f takes 1 second, a alone 1.03 or 1.2."""
    sites = [site("a", 0.1), site("f", 0.2, plain=False), site("w", 0.9, wraps=True)]
    applier = Applier(sites)
    for plain, first in ((1.03, ["a+w", "a+f+w", "a", "a+f"]), (1.2, ["a+f+w", "a+w", "a+f", "a"])):

        async def weigh(steps: Sequence[Step], plain: float = plain) -> float:
            return 1.0 if "f" in {step.skill for step in steps} else plain

        planner = plan.Planner(applier.make, applier.look, weigh=weigh)
        found = [
            ranked_plan.candidate.id
            async for ranked_plan in planner.ranked_plans(sites, triton=True)
        ]
        assert found[:4] == first and sorted(found) == sorted(await names(sites, triton=True))


async def test_fusions_that_a_plain_rewrite_took_away_come_first_where_their_call_is_shorter() -> (
    None
):
    """c promises more than f, which it makes impossible; that f leaves less to do is seen
    afterwards."""
    sites = [site("c", 0.1), site("f", 0.05, plain=False), site("g", 0.02, plain=False)]
    applier = Contested(sites, ["cf"])

    async def weigh(steps: Sequence[Step]) -> float:
        return {"c+g": 0.9, "f+g": 0.6}.get("+".join(step.skill for step in steps), 1.0)

    planner = plan.Planner(applier.make, applier.look, weigh=weigh)
    found = [
        ranked_plan.candidate.id async for ranked_plan in planner.ranked_plans(sites, triton=True)
    ]
    assert found[:3] == ["f+g", "c+g", "c"]
    assert [
        ranked_plan.candidate.id async for ranked_plan in planner.ranked_plans(sites, triton=False)
    ] == ["c"]
    assert [c.candidate.id for c in await ranked_plans(applier)][:2] == ["c+g", "c"]


async def test_where_nobody_can_tell_fusions_come_first() -> None:
    async def weigh(steps: Sequence[Step]) -> float:
        raise RewriteError("how long it takes is not estimated")

    sites = [site("a", 0.1), site("f", 0.2, plain=False), site("w", 0.9, wraps=True)]
    planner = plan.Planner(Applier(sites).make, Applier(sites).look, weigh=weigh)
    found = [
        ranked_plan.candidate.id async for ranked_plan in planner.ranked_plans(sites, triton=True)
    ]
    assert found == await names(sites, triton=True)


async def test_two_wrappers_are_two_courses() -> None:
    sites = [site("a"), site("w", 0.9, wraps=True), site("v", 0.3, wraps=True)]
    assert (await names(sites, triton=True))[:3] == ["a+w", "a+v", "a"]


async def test_no_triton_candidate_where_triton_is_of_no_use() -> None:
    assert await names([site("a"), site("f", plain=False)], triton=False) == ["a"]


async def test_a_site_without_proof_is_never_applied() -> None:
    assert await names([site("a", holds=False), site("b")], triton=True) == ["b"]


async def test_a_failing_skill_does_not_stop_the_others() -> None:
    assert await names([site("a", 0.9), site("b", 0.2)], triton=True, broken=["a"]) == ["b"]


async def ranked_plans(
    applier: "Applier", prefer: plan.Prefer = lambda site: None
) -> list[plan.RankedPlan]:
    planner = plan.Planner(applier.make, applier.look, prefer)
    return [ranked_plan async for ranked_plan in planner.ranked_plans(applier.sites, triton=True)]


async def test_parameters_start_from_the_default_or_from_what_won_before() -> None:
    applier = Applier([site("f", plain=False, BLOCK=[1024, 2048])])
    assert [c.candidate.id for c in await ranked_plans(applier)] == ["f:1024"]
    known = await ranked_plans(applier, lambda site: {"BLOCK": 2048})
    assert [c.candidate.id for c in known] == ["f:2048"]


async def test_places_to_search_come_by_benefit_and_need_a_choice() -> None:
    applier = Applier(
        [
            site("f", 0.2, plain=False, BLOCK=[1, 2]),
            site("g", 0.5, plain=False, BLOCK=[1]),
            site("h", 0.4, plain=False, BLOCK=[1, 2], warps=[4]),
        ]
    )
    ranked_plan = (await ranked_plans(applier))[0]
    assert [s.skill for s in ranked_plan.sites] == ["g", "h", "f"]
    assert [ranked_plan.sites[place].skill for place in ranked_plan.places()] == ["h", "f"]


class Contested(Applier):
    """Every step also takes away the sites that compete with it."""

    def __init__(self, sites: Sequence[Site], groups: Sequence[str]) -> None:
        super().__init__(sites)
        self.groups = groups

    async def look(self, steps: Sequence[Step]) -> tuple[Site, ...]:
        left = await super().look(steps)
        taken = {
            name for step in steps for group in self.groups if step.skill in group for name in group
        }
        return tuple(s for s in left if s.skill not in taken)


async def test_competitors_for_the_same_operations_are_courses_of_their_own() -> None:
    """m (matrix product with its tail) and t (the tail alone) exclude each other; e follows
    either."""
    sites = [site("m", 0.6, plain=False), site("t", 0.2, plain=False), site("e", 0.1, plain=False)]
    found = [c.candidate.id for c in await ranked_plans(Contested(sites, ["mt"]))]
    assert found == ["m+e", "t+e", "m", "t", "e"]


async def test_a_competitor_is_recorded_where_that_is_offered() -> None:
    sites = [site("m", 0.6, plain=False), site("t", 0.2, plain=False), site("w", 0.4, wraps=True)]
    found = [c.candidate.id for c in await ranked_plans(Contested(sites, ["mt"]))]
    assert found == ["m+w", "m", "w", "t+w", "t"]


async def test_a_plain_rewrite_does_not_cost_a_better_fusion() -> None:
    """c (plain, 5 %) makes f (a fusion, 60 %) impossible: the main course is f, c is another."""
    sites = [site("c", 0.05), site("f", 0.6, plain=False), site("p", 0.1)]
    found = [c.candidate.id for c in await ranked_plans(Contested(sites, ["cf"]))]
    assert found == ["p+f", "p+c", "f", "p", "c"]


async def test_a_plain_rewrite_that_saves_more_than_the_fusion_it_costs_is_taken() -> None:
    sites = [site("c", 0.7), site("f", 0.6, plain=False)]
    found = [c.candidate.id for c in await ranked_plans(Contested(sites, ["cf"]))]
    assert found == ["c", "f"]


def test_promise_counts_each_operation_once() -> None:
    """20 % are saved; of two fusions for the same node the better one (50 %) is open, and another
    of 10 %."""
    first, second = site("f", 0.5, plain=False), site("g", 0.4, plain=False)
    other = plan.replace(site("h", 0.1, plain=False), site="m")
    chain = plan.PlanDraft(
        lefts=((), (first, second, other, site("p", 0.9))), sites=(site("c", 0.2),)
    )
    assert abs(plan.promise(chain) - (1 - 0.8 * 0.5 * 0.9)) < 1e-12


async def test_steps_that_cannot_be_written_down_are_left_off() -> None:
    applier = Applier([site("a", 0.9), site("f", 0.5, plain=False)])
    applier.unspoken = ("f",)
    assert [c.candidate.id for c in await ranked_plans(applier)] == ["a"]


async def test_rivals_are_bounded() -> None:
    sites = [site(name, 0.5, plain=False) for name in "abcdefgh"]
    found = [c.candidate.id for c in await ranked_plans(Contested(sites, ["abcdefgh"]))]
    assert found == list("abcdefgh")  # one winner, four rivals, the rest as single rewrites
    assert len(plan.rivals(plan.PlanDraft(lefts=(tuple(sites), ()), sites=(sites[0],)))) == 7


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.booleans(), st.booleans()), unique_by=lambda t: t[0]
    )
)
async def test_candidates_are_unique_and_use_only_sound_sites(
    spec: list[tuple[str, bool, bool]],
) -> None:
    sites = [site(name, plain=plain, holds=holds) for name, plain, holds in spec]
    found = await names(sites, triton=True)
    sound = {name for name, _, holds in spec if holds}
    assert len(found) == len(set(found))
    assert all(set(name.split("+")) <= sound for name in found)
