"""Who is taken for the client of a server that listens."""

import socket

from kernel_lsp.server.lifecycle import accept_client


def test_a_page_in_a_browser_is_no_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        page = socket.create_connection(listening.getsockname())
        page.sendall(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        editor = socket.create_connection(listening.getsockname())
        editor.sendall(b"Content-Length: 2\r\n\r\n{}")
        with page, editor, accept_client(listening) as taken:
            assert taken.recv(64).startswith(b"Content-Length")
