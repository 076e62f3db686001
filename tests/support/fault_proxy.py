"""A proxy on loopback between a runtime and the server, that does what networks do: drops answers, delays and doubles requests, fails."""

import contextlib
import http.client
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class FaultProxy:
    """Faults hold for requests whose path contains `only`; each is switched on and off while traffic runs.

    `drop_replies`: the server has answered, so what it did is done, and the client's socket is cut. `double`: the request reaches
    the server twice, and the second answer counts. `away`: 503 with a page that is no JSON, and the server hears nothing.
    `delay_seconds`: before the request goes on.
    """

    def __init__(self, port: int, only: str = "") -> None:
        self.only = only
        self.drop_replies, self.double, self.away = threading.Event(), threading.Event(), threading.Event()
        self.delay_seconds = 0.0
        self.faults = 0  # requests that met one
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (OSError, http.client.HTTPException):
                    self.close_connection = True

            def do_POST(self) -> None:
                proxy._pass_on(self, port)

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _pass_on(self, client: BaseHTTPRequestHandler, port: int) -> None:
        body = client.rfile.read(int(client.headers.get("Content-Length", 0)))
        faulty = self.only in client.path
        if faulty and (self.drop_replies.is_set() or self.double.is_set() or self.away.is_set() or self.delay_seconds):
            self.faults += 1
        if faulty and self.delay_seconds:
            time.sleep(self.delay_seconds)
        if faulty and self.away.is_set():
            self._answer(client, 503, {"Content-Type": "text/html"}, b"<h1>Service Unavailable</h1>")
            return
        answer = self._ask(client, port, body)
        if faulty and self.double.is_set():
            answer = self._ask(client, port, body)
        if faulty and self.drop_replies.is_set():
            client.close_connection = True
            client.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(client, *answer)

    @staticmethod
    def _ask(client: BaseHTTPRequestHandler, port: int, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(connection):
            connection.request(client.command, client.path, body=body or None, headers=dict(client.headers))
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()

    @staticmethod
    def _answer(client: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes) -> None:
        client.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _HOP_BY_HOP:
                client.send_header(name, value)
        client.send_header("Content-Length", str(len(body)))
        client.end_headers()
        client.wfile.write(body)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
