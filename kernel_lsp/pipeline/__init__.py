"""The order of the stages: analyze, select, propose, evaluate. Imports no torch; holds no stage's
logic.

order.py        a job from text to outcome, with its cache: the quick search, and what follows it
prepare.py      what is known about a job before any of the user's code runs
applied.py      what an autograd Function that launches Triton kernels is applied to
callers.py      what other launchers are called with, where only their callers have a workload
elsewhere.py    who else may launch a Triton kernel
opened.py       a target whose engine runs: what both searches work on
turns.py        who measures on a device now
search.py       the quick search: candidates compared cheaply, judged in full where it matters
known.py        parameters that won before
policies.py     the trained policies of a user in a job
tournament.py   which candidates are judged how thoroughly, and which one is offered
deep.py         the deeper search: the parts of search/ and agents/ on one opened target
workshop.py     what its proposers want, made into candidates; a model's text: writing.py
showing.py      what a language model would be sent
recipes.py      plans from learned skills, where they fit
learning.py     drafts of skills from what was kept and from searches; how learned ones do at work
skill_validation/ whether a learned skill helps on other tasks
"""

from kernel_lsp.pipeline.order import Pipeline
from kernel_lsp.pipeline.prepare import PreparedJob, prepare

__all__ = ["Pipeline", "PreparedJob", "prepare"]
