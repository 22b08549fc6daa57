"""The compact form: a target in some hundred words to a small model, whose replies are tool
calls.

vocabulary.py  every word; a word's place is its token
words.py       numbers, sizes and names as words
situations.py  a situation (graph, device, skills, sites) as words
grammar.py     which replies are valid, as a graph that decoding walks
dialog.py      a dialog about one target: sent, said, heard; samples for training
question.py    what the two questions below have in common
value_model.py the question how much faster a plan is than the rule's
launching.py   the same question of a Triton kernel, over the kernel as it is
tokenizer.py   the vocabulary as the files that transformers and vLLM read
"""

from kernel_lsp.agents.prompt_encoding.dialog import Dialog, DialogPhase, TokenSample
from kernel_lsp.agents.prompt_encoding.situations import Situation
from kernel_lsp.agents.prompt_encoding.vocabulary import END, PAD, TOKENS, VERSION, WORDS

__all__ = [
    "END",
    "PAD",
    "TOKENS",
    "VERSION",
    "WORDS",
    "Dialog",
    "DialogPhase",
    "Situation",
    "TokenSample",
]
