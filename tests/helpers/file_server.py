"""A server of files by FTP for tests, in a thread: as far away as another machine."""

import threading
import warnings
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.11 has asyncore still
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import FTPHandler
    from pyftpdlib.servers import ThreadedFTPServer


class FileServer:
    """A server of files by FTP, in a thread: as far away as another machine for those who ask."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._port = folder, 0
        self.start()

    @property
    def url(self) -> str:
        return f"ftp://127.0.0.1:{self._port}/releases"

    def start(self) -> None:
        rights = DummyAuthorizer()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that whoever comes may write
            rights.add_anonymous(str(self._folder), perm="elradfmw")
        handler = type("Handler", (FTPHandler,), {"authorizer": rights, "banner": "files"})
        self._server = ThreadedFTPServer(("127.0.0.1", self._port), handler)
        self._port = self._server.address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """With the connections that are open."""
        self._server.close_all()
        self._thread.join(10)
