"""The ranker behind the protocol of language models: deterministic, valid, free."""

from dataclasses import replace

from kernel_lsp.agents import backbones, replies, tools
from kernel_lsp.config import Settings
from kernel_lsp.records import Backbone, Json, Message, Prompt, Role, Site

FUSE = Site(
    skill="fuse",
    site="add+mul",
    summary="",
    proofs=(),
    parameters={"BLOCK": [128, 256], "warps": [4, 8]},
)
DROP = Site(skill="drop", site="eye", summary="", proofs=())
QUESTION = (Message(role=Role.USER, text="anything"),)


def made() -> Backbone:
    return backbones.make(Settings(), python="python", allowed_origin=None, data_dir="/nowhere")


async def said(backbone: Backbone, prompt: Prompt) -> Json | None:
    reply = await backbone.reply(prompt)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (0, 0)
    parsed = replies.parse(reply, prompt.tools)
    if not parsed.calls:
        return None
    assert not parsed.problems
    return parsed.calls[0].arguments


async def test_sites_come_in_their_order_then_their_other_choices_each_once() -> None:
    prompt = Prompt(messages=QUESTION, tools=(tools.apply_skill((FUSE, DROP)),), sites=(FUSE, DROP))
    for backbone in (made(), made()):  # the same both times
        found = [await said(backbone, prompt) for _ in range(5)]
        assert [(f["site"], f["parameters"]) for f in found if f] == [
            ("add+mul", {"BLOCK": 128, "warps": 4}),
            ("eye", {}),
            ("add+mul", {"BLOCK": 256, "warps": 4}),
            ("add+mul", {"BLOCK": 128, "warps": 8}),
        ]
        assert found[4] is None


async def test_other_sites_are_another_question() -> None:
    backbone = made()
    both = Prompt(messages=QUESTION, tools=(tools.apply_skill((FUSE, DROP)),), sites=(FUSE, DROP))
    one = replace(both, tools=(tools.apply_skill((DROP,)),), sites=(DROP,))
    assert (await said(backbone, both) or {})["site"] == "add+mul"
    assert (await said(backbone, one) or {})["site"] == "eye"
    assert await said(backbone, one) is None


async def test_selecting_takes_the_first_three_and_nothing_is_written_down() -> None:
    names = ["a-skill", "b-skill", "c-skill", "d-skill"]
    chosen = await said(made(), Prompt(messages=QUESTION, tools=(tools.select_skills(names),)))
    assert chosen is not None
    assert [one["name"] for one in chosen["selected_skills"]] == names[:3]
    kept = await said(made(), Prompt(messages=QUESTION, tools=(tools.update_skill_library(),)))
    assert kept == {"think": "", "new_skills": []}


async def test_a_question_in_prose_has_no_answer() -> None:
    backbone = made()
    assert (await backbone.open(lambda progress: None)).name == "plan:2"
    assert not (await backbone.reply(Prompt(messages=QUESTION))).calls
    await backbone.close()
