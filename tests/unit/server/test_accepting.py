"""Who is taken for the client of a server that listens."""

import contextlib
import socket
import struct

from kernel_lsp.server.lifecycle import MAX_SILENT, accept_client


def test_a_page_in_a_browser_is_no_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        page = socket.create_connection(listening.getsockname())
        page.sendall(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        editor = socket.create_connection(listening.getsockname())
        editor.sendall(b"Content-Length: 2\r\n\r\n{}")
        with page, editor, accept_client(listening) as taken:
            assert taken.recv(64).startswith(b"Content-Length")


def test_silent_connections_keep_nobody_out() -> None:
    with contextlib.ExitStack() as s:
        listening = s.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
        silent = [
            s.enter_context(socket.create_connection(listening.getsockname()))
            for _ in range(MAX_SILENT + 10)
        ]
        gone = socket.create_connection(listening.getsockname())
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()  # with a reset
        editor = s.enter_context(socket.create_connection(listening.getsockname()))
        editor.sendall(b"Content-Length: 2\r\n\r\n{}")
        taken = s.enter_context(accept_client(listening))
        assert taken.getpeername() == editor.getsockname()
        for one in silent:
            one.settimeout(5.0)
            with contextlib.suppress(ConnectionError):
                assert one.recv(1) == b"", "nobody waits for a server that has its client"
