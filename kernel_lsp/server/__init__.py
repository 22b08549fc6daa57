"""The language server: LSP in, LSP out, answers from memory. Nothing here runs user code or
imports torch.

framing.py    bytes to messages and back
protocol.py   what each message means: order, errors, cancellation, the end
app.py        what one server holds, and analysis -> hints
abilities.py  what the client announced; nothing else is ever sent
sync.py       documents, folders, settings and the disk changing
reads.py      hover, code actions, lenses, inlay hints
commands.py   kernel-lsp.*
jobs.py       measurements and searches: queue, results, cancellation
retries.py    another try for what a busy machine has cut short
questions.py  what the user is asked before anything runs or is sent
bars.py       progress in the editor
prompts.py    what would be sent to a language model
lifecycle.py  start and end of the process
"""

import gc

# lsprotocol is a thousand classes, each made twice. Collecting at Python's usual pace while they
# are made costs a tenth of the start-up; not collecting at all costs 9 MB that never come back.
# What is left when they are made stays for good, so later collections need not look at it.
_usual = gc.get_threshold()
gc.set_threshold(10_000)
try:
    from kernel_lsp.server.lifecycle import main, serve
finally:
    gc.set_threshold(*_usual)
gc.freeze()

__all__ = ["main", "serve"]
