"""The deterministic ranker as a backbone: reads no prose, costs nothing, needs no model.

It names the best-ranked site that it has not named before for the same sites, first every site
with its default parameters, then with one other choice at a time. Selecting takes the first
skills, which come ranked; no skill is ever written down. Not covered: whole plans of rewrites
(agents/plan.py), which the quick search makes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from kernel_lsp.agents import tools
from kernel_lsp.records import (
    SEMANTIC_PARAMETERS,
    Finish,
    Json,
    ModelInfo,
    OnText,
    Prompt,
    Reply,
    Report,
    Site,
    Structured,
    ToolCall,
    ToolSchema,
    Usage,
)

VERSION = "2"
NOTHING = "Every offered site has been named with each of its choices."


class PlanBackbone:
    """A `Backbone` for one job, whose memory of what it has named is part of the answer."""

    def __init__(self) -> None:
        self._named: Counter[tuple[tuple[str, str], ...]] = Counter()

    async def open(self, report: Report) -> ModelInfo:
        """What this policy is; there is nothing to start."""
        return ModelInfo(backbone="plan", model=VERSION, structured=Structured.SCHEMA)

    async def count(self, prompt: Prompt) -> int:
        """0: it reads no tokens."""
        return 0

    async def reply(self, prompt: Prompt, on_text: OnText | None = None) -> Reply:
        """The call that the rule chooses, or NOTHING as text; `on_text` is never called."""
        begun = time.monotonic()
        call = self._call(prompt)
        return Reply(
            text="" if call else NOTHING,
            calls=(call,) if call else (),
            finish=Finish.CALLS if call else Finish.STOP,
            usage=Usage(prompt_tokens=0, completion_tokens=0),
            latency_s=time.monotonic() - begun,
            model=f"plan/{VERSION}",
        )

    async def close(self) -> None:
        """Nothing to end."""
        pass

    def _call(self, prompt: Prompt) -> ToolCall | None:
        offered = {tool.name: tool for tool in prompt.tools}
        if tools.APPLY in offered and prompt.sites:
            key = tuple((site.skill, site.site) for site in prompt.sites)
            number, self._named[key] = self._named[key], self._named[key] + 1
            arguments = next(islice(_applications(prompt.sites), number, None), None)
            return ToolCall(name=tools.APPLY, arguments=arguments) if arguments else None
        if tools.SELECT in offered:
            return ToolCall(name=tools.SELECT, arguments=_selection(offered[tools.SELECT]))
        if tools.UPDATE in offered:
            return ToolCall(name=tools.UPDATE, arguments={"think": "", "new_skills": []})
        return None


def _applications(sites: Sequence[Site]) -> Iterator[Json]:
    """Arguments of apply_skill: defaults of all sites, then their other choices one at a time."""
    defaults = [{name: choices[0] for name, choices in site.parameters.items()} for site in sites]
    for site, default in zip(sites, defaults, strict=True):
        yield {"skill": site.skill, "site": site.site, "parameters": default}
    for site, default in zip(sites, defaults, strict=True):
        for name, choices in site.parameters.items():
            for choice in () if name in SEMANTIC_PARAMETERS else choices[1:]:
                yield {
                    "skill": site.skill,
                    "site": site.site,
                    "parameters": {**default, name: choice},
                }


def _selection(tool: ToolSchema) -> Json:
    chosen = tool.parameters["properties"]["selected_skills"]
    names = chosen["items"]["properties"]["name"]["enum"][: chosen["maxItems"]]
    return {
        "think": "",
        "selected_skills": [{"name": name, "reason": "ranked first"} for name in names],
    }
