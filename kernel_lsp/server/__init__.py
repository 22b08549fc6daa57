"""The language server: LSP in, LSP out, answers from memory. Nothing here runs user code or
imports torch.

framing.py    bytes to messages and back
protocol.py   what each message means: order, errors, cancellation, the end
announced.py  what `initialize` answers, before the rest is imported
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

from kernel_lsp.server.collecting import many_that_stay

with many_that_stay():
    from kernel_lsp.server.lifecycle import main, serve

__all__ = ["main", "serve"]
