"""A second question in the same turn: after a skill was read, or after a reply that called nothing.

Both stay within the room of the first one, whose messages are kept, so a server has them cached.
Not covered: how often one may ask again (policy.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kernel_lsp.agents import prompts, sizing
from kernel_lsp.agents.sizing import Room
from kernel_lsp.agents.tools import READ, read_skill
from kernel_lsp.agents.wording import harmless, line
from kernel_lsp.records import Message, Prompt, Reply, ReplyProblem, Role, Skill, ToolCall, ToolSchema

QUOTED_REPLY = 1000
"""Characters of a reply that could not be used: its beginning shows what was meant."""
TOO_LONG = "It does not fit into the rest of the context. Decide without it."


def after_reading(prompt: Prompt, call: ToolCall, skill: Skill, room: Room) -> Prompt:
    """The same question with the skill's text; it is not offered to be read again."""
    offered = tuple(_read_already(prompt.tools, skill.name))
    said = [message.text for message in prompt.messages]
    text = prompts.reference(skill)
    if sizing.spare([*said, text], offered, room) < 0:
        text = TOO_LONG
    asked = Message(role=Role.ASSISTANT, calls=(call,))
    told = Message(role=Role.TOOL, text=text, call_id=call.id or None)
    return replace(prompt, messages=(*prompt.messages, asked, told), tools=offered)


def after_problems(
    prompt: Prompt, reply: Reply, problems: Sequence[ReplyProblem], room: Room
) -> Prompt | None:
    """The same question with what was wrong with its answer; None: there is no room for that."""
    said = harmless(reply.text.strip()[:QUOTED_REPLY]) or "(nothing)"
    rows = ["That could not be used:", *(f"- {line(str(problem))}" for problem in problems), "Make one call."]
    told = "\n".join(rows)
    if sizing.spare([*(message.text for message in prompt.messages), said, told], prompt.tools, room) < 0:
        return None
    answered = Message(role=Role.ASSISTANT, text=said), Message(role=Role.USER, text=told)
    return replace(prompt, messages=(*prompt.messages, *answered))


def _read_already(offered: Sequence[ToolSchema], name: str) -> Iterator[ToolSchema]:
    for tool in offered:
        if tool.name != READ:
            yield tool
        elif left := [one for one in tool.parameters["properties"]["name"]["enum"] if one != name]:
            yield read_skill(left)
