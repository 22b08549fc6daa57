"""The language server: LSP in, LSP out, answers from memory. Nothing here runs user code or imports torch.

app.py        what one server holds, and analysis -> hints
abilities.py  what the client announced; nothing else is ever sent
sync.py       documents, folders, settings and the disk changing
reads.py      hover, code actions, lenses, inlay hints
commands.py   kernel-lsp.*
jobs.py       measurements: consent, queue, progress, cancellation
lifecycle.py  start and end of the process
"""

import gc

# lsprotocol is a thousand classes. Searching them for garbage again and again takes a fifth of the
# start-up; once they are set aside no later collection looks at them either.
gc.disable()
try:
    from kernel_lsp.server.lifecycle import main, serve
finally:
    gc.enable()
gc.freeze()

__all__ = ["main", "serve"]
