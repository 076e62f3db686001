"""A small HTTP server on loopback whose answers can be wrong in every way that a network is."""

import contextlib
import json
import select
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: HTTPMessage
    body: bytes
    _socket: socket.socket

    def json(self) -> Any:
        return json.loads(self.body) if self.body else None

    def is_gone(self) -> bool:
        """Whether who asked has closed the connection."""
        with contextlib.suppress(OSError, ValueError):
            readable, _, _ = select.select([self._socket], [], [], 0)
            return bool(readable) and not self._socket.recv(1, socket.MSG_PEEK)
        return True


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    # How much of the body is sent before the socket is cut; all of it when None.
    cut_after: int | None = None


# The socket is cut without an answer.
NOTHING = None

Answering = Callable[[Request], Reply | None]


def as_json(status: int, body: Any, **headers: str) -> Reply:
    return Reply(status, json.dumps(body).encode(), {"Content-Type": "application/json", **headers})


class Listening:
    """Serves until it is closed: a thread a connection."""

    def __init__(self, answer: Answering) -> None:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.answer = answer
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    answer: Answering

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is what happens here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    headers: HTTPMessage

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        reply = self.server.answer(Request(self.command, self.path, self.headers, body, self.connection))
        if reply is None:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body[: reply.cut_after])
        self.close_connection = reply.cut_after is not None

    do_GET = do_POST = do_DELETE = do_OPTIONS = _serve

    def log_message(self, format: str, *args: Any) -> None:
        """The suite prints a table and nothing else."""
