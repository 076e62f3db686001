"""HTTP/1.1 on a socket: reading a request as it should be, and sending an answer as it should not be."""

import asyncio
import contextlib
import http
import json
import socket
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.provider_simulator.answers import Reply
from tests.support.provider_simulator.behaviours import Behaviour, Wire

MAX_HEAD_BYTES = 256 * 1024
MAX_REQUEST_BYTES = 64 * 1024 * 1024
# How much more than what comes `short` and `short_chunk` promise.
_MISSING_BYTES = 64


class BadRequest(Exception):
    """The request cannot be read; the text is the answer."""


@dataclass(frozen=True)
class HttpRequest:
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """The body as JSON; None where it is not."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


async def read_request(reader: StreamReader, writer: StreamWriter, begun: bytes = b"") -> HttpRequest | None:
    """The next request; None when the peer has closed instead. `begun` was read of it before. Raises BadRequest."""
    try:
        head = begun + await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        raise BadRequest("The header is too large.") from None
    lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    try:
        method, target, version = lines[0].split(" ")
        headers = {name.strip().lower(): value.strip() for name, value in (line.split(":", 1) for line in lines[1:])}
        length = int(headers.get("content-length", "0"))
    except ValueError:
        raise BadRequest("This is not HTTP.") from None
    if not version.startswith("HTTP/1."):
        raise BadRequest(f"{version[:20]} is not spoken here.")
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if not 0 <= length <= MAX_REQUEST_BYTES:
        raise BadRequest("The body is too large.")
    chunked = headers.get("transfer-encoding", "").lower() == "chunked"
    try:
        body = await _read_chunks(reader) if chunked else await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        return None
    path, _, query = target.partition("?")
    return HttpRequest(method, path, query, headers, body)


async def _read_chunks(reader: StreamReader) -> bytes:
    body = bytearray()
    while True:
        try:
            size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        except ValueError:
            raise BadRequest("A chunk has no size.") from None
        if not 0 <= size <= MAX_REQUEST_BYTES - len(body):
            raise BadRequest("The body is too large.")
        body += (await reader.readexactly(size + 2))[:size]
        if size == 0:
            return bytes(body)


async def send(writer: StreamWriter, reply: Reply, behaviour: Behaviour, interval: float) -> bool:
    """Send the answer the way the behaviour says. Returns whether the connection can serve another request."""
    match behaviour.wire:
        case Wire.HANG:
            await asyncio.Event().wait()
        case Wire.RESET_BEFORE:
            _reset(writer)
            return False
        case Wire.RESET_MID_BODY:
            body = reply.body or b"{}"
            writer.write(_head(reply, {"content-length": str(len(body))}) + body[: len(body) // 2])
            await writer.drain()
            await asyncio.sleep(0.02)  # lets the peer read what was sent: RST may overtake it
            _reset(writer)
            return False
        case Wire.SHORT:
            promised = len(reply.body) + _MISSING_BYTES
            writer.write(_head(reply, {"content-length": str(promised), "connection": "close"}) + reply.body)
            return False
        case Wire.SHORT_CHUNK:
            promised = len(reply.body) + _MISSING_BYTES
            writer.write(_head(reply, {"transfer-encoding": "chunked", "connection": "close"}) + b"%x\r\n" % promised + reply.body)
            return False
        case Wire.SLOW_HEADERS:
            await _drip(writer, _head(reply, _length(reply)), interval)
            await _write(writer, _body(reply))
        case Wire.DRIP:
            writer.write(_head(reply, _length(reply)))
            for piece in _body(reply):
                await _drip(writer, piece, interval)
        case Wire.NORMAL if reply.stream is None:
            writer.write(_head(reply, _length(reply)) + reply.body)
        case Wire.NORMAL:
            writer.write(_head(reply, _length(reply)))
            await _write(writer, _body(reply))
    await writer.drain()
    return True


def _head(reply: Reply, framing: Mapping[str, str]) -> bytes:
    reason = http.HTTPStatus(reply.status).phrase if reply.status in http.HTTPStatus._value2member_map_ else "Unknown"
    headers = {"content-type": reply.content_type, **framing, **{name.lower(): value for name, value in reply.headers.items()}}
    lines = [f"HTTP/1.1 {reply.status} {reason}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", errors="replace")


def _length(reply: Reply) -> dict[str, str]:
    return {"content-length": str(len(reply.body))} if reply.stream is None else {"transfer-encoding": "chunked"}


def _body(reply: Reply) -> Iterator[bytes]:
    """The pieces of the body as they go out, with the frames of chunks around them where it is streamed."""
    if reply.stream is None:
        yield reply.body
        return
    for piece in reply.stream:
        yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


async def _write(writer: StreamWriter, pieces: Iterator[bytes]) -> None:
    for piece in pieces:
        writer.write(piece)
        await writer.drain()


async def _drip(writer: StreamWriter, data: bytes, interval: float) -> None:
    for byte in data:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(interval)


def _reset(writer: StreamWriter) -> None:
    """Close with RST instead of FIN: a linger of zero seconds throws away what is unsent."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def close(writer: StreamWriter) -> None:
    """Close with FIN, after what is still to be sent; a peer that does not take it is dropped after a second."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1):
            await writer.wait_closed()
    writer.transport.abort()
