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

    async def __call__(self, steps: Sequence[Step]) -> tuple[Candidate, tuple[Site, ...]]:
        if any(step.skill in self.broken for step in steps):
            raise RewriteError("refused")
        done = {step.skill for step in steps}
        name = "+".join(step.skill + "".join(f":{v}" for v in step.parameters.values()) for step in steps)
        left = tuple(s for s in self.sites if s.skill not in done)
        return Candidate(id=name, edit=None, program="", entry="M", steps=tuple(steps)), left


async def names(sites: Sequence[Site], *, triton: bool, broken: Sequence[str] = ()) -> list[str]:
    return [c.id async for c in plan.propose(sites, Applier(sites, broken), triton=triton)]


async def test_collapses_come_before_fusions_and_the_larger_saving_first() -> None:
    sites = [site("a", 0.1), site("b", 0.9), site("f", 0.95, plain=False)]
    assert await names(sites, triton=True) == ["b+a+f", "b+a", "f", "b", "a"]


async def test_what_goes_around_a_target_comes_last_and_is_a_candidate_of_its_own() -> None:
    sites = [site("a", 0.1), site("f", 0.2, plain=False), site("w", 0.9, wraps=True, mode=["x", "y"])]
    found = await names(sites, triton=True)
    assert found == ["a+f+w:x", "a+f+w:y", "a+f", "a+w:x", "a+w:y", "a", "w:x", "f"]
    assert await names([sites[2]], triton=True) == ["w:x", "w:y"]


async def test_no_triton_candidate_where_triton_is_of_no_use() -> None:
    assert await names([site("a"), site("f", plain=False)], triton=False) == ["a"]


async def test_a_site_without_proof_is_never_applied() -> None:
    assert await names([site("a", holds=False), site("b")], triton=True) == ["b"]


async def test_a_failing_skill_does_not_stop_the_others() -> None:
    assert await names([site("a", 0.9), site("b", 0.2)], triton=True, broken=["a"]) == ["b"]


async def test_parameters_of_the_best_fusion_are_varied_once_each() -> None:
    sites = [site("f", plain=False, BLOCK=[1024, 2048])]
    assert await names(sites, triton=True) == ["f:1024", "f:2048"]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans(), st.booleans()), unique_by=lambda t: t[0]))
async def test_candidates_are_unique_and_use_only_sound_sites(spec: list[tuple[str, bool, bool]]) -> None:
    sites = [site(name, plain=plain, holds=holds) for name, plain, holds in spec]
    found = await names(sites, triton=True)
    sound = {name for name, _, holds in spec if holds}
    assert len(found) == len(set(found))
    assert all(set(name.split("+")) <= sound for name in found)
