"""The server: one event loop, in a thread of its own or in the process's main thread."""

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from typing import Any, Self, TypeVar

from tests.support.provider_simulator import wire
from tests.support.provider_simulator.answers import Reply, json_reply, reply_for
from tests.support.provider_simulator.behaviours import Answer, Behaviour, Wire
from tests.support.provider_simulator.dialects import DIALECTS, Dialect, OpenAi
from tests.support.provider_simulator.records import Outcome, RecordedRequest, Records
from tests.support.provider_simulator.script import DirectiveError, Match, Script

T = TypeVar("T")
logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
MODELS = ("simulator-1", "simulator-1-mini")
# So that a thousand clients that connect in the same instant all get in (the kernel's somaxconn may cap it).
_BACKLOG = 4096


class ProviderSimulator:
    """A model provider on loopback. As a context manager it runs in a thread; `serve` runs it in the caller's event loop.

    `port` 0 takes any free one; `latency` and `drip_interval` are seconds; `access_log` gets a line per request, without key or
    text. Starting raises OSError where the port is taken.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        latency: float = 0.0,
        drip_interval: float = 0.3,
        access_log: Callable[[str], None] | None = None,
    ) -> None:
        self.port = port
        self.latency = latency
        self.drip_interval = drip_interval
        self._access_log = access_log
        self._records = Records()
        self._script = Script()
        self._connections: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def origin(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def url(self) -> str:
        """The base URL as a credential holds it."""
        return f"{self.origin}/v1"

    @property
    def requests(self) -> list[RecordedRequest]:
        """Every request so far, oldest first, as it stands now; those to /healthz and /_control are not counted."""
        return self._records.all()

    def script(self, match: Match, *behaviours: Behaviour | str) -> None:
        """Queue behaviours for requests whose prompt contains `match`, or for which it is true. "" matches all.

        A callable gets the RecordedRequest, on the server's thread. Of several scripts that match, the oldest unused one decides.
        Raises ValueError on keywords that cannot be read.
        """
        self._script.add(match, [Behaviour.parse(made) if isinstance(made, str) else made for made in behaviours])

    def wait_for(self, predicate: Callable[[list[RecordedRequest]], T], timeout: float = 5.0) -> T:
        """Wait until `predicate(requests)` is truthy and return its value. Raises TimeoutError after `timeout` seconds."""
        return self._records.wait_for(predicate, timeout)

    def clear(self) -> None:
        """Forget requests, scripts and counters."""
        self._records.clear()
        self._script.clear()

    def __enter__(self) -> Self:
        started = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                asyncio.run(self.serve(started.set))
            except BaseException as error:
                failures.append(error)
            finally:
                started.set()

        self._thread = threading.Thread(target=run, name="provider-simulator", daemon=True)
        self._thread.start()
        started.wait()
        if failures:
            raise failures[0]
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._thread:
            self._thread.join()

    def stop(self) -> None:
        """Ask `serve` to end. Safe from any thread and from a signal handler of the loop."""
        if self._loop and self._stop:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)

    async def serve(self, ready: Callable[[], None] = lambda: None) -> None:
        """Listen until `stop` is called; `ready` is called once the port is open. Open connections end with the server."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, HOST, self.port, limit=wire.MAX_HEAD_BYTES, backlog=_BACKLOG)
        try:
            self.port = server.sockets[0].getsockname()[1]
            ready()
            await self._stop.wait()
        finally:
            server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await server.wait_closed()

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        # A plain function: asyncio's own task for a coroutine here would be out of our reach when the server stops.
        connection = asyncio.get_running_loop().create_task(self._serve_connection(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve_connection(self, reader: StreamReader, writer: StreamWriter) -> None:
        begun: bytes | None = b""
        try:
            while begun is not None:
                try:
                    request = await wire.read_request(reader, writer, begun)
                except wire.BadRequest as error:
                    document = OpenAi().error_for(400, message=str(error))
                    await wire.send(writer, json_reply(400, document, {"connection": "close"}), Behaviour(), 0)
                    return
                if request is None:
                    return
                begun = await self._serve_request(request, reader, writer)
        except OSError:
            return
        finally:
            await wire.close(writer)

    async def _serve_request(self, request: wire.HttpRequest, reader: StreamReader, writer: StreamWriter) -> bytes | None:
        """Answer while watching for the peer's close. Returns what was read of the next request; None ends the connection."""
        if request.path == "/healthz" or request.path.startswith("/_control/"):
            await wire.send(writer, self._control(request), Behaviour(), 0)
            return b""
        dialect = DIALECTS.get(request.path, OpenAi())
        document = request.document
        record = self._records.add(request.method, request.path, request.headers, document, dialect.prompt(document))
        answering = asyncio.create_task(self._answer(request, record, dialect, writer))
        watching = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
            following = b""
            if watching.done():
                # A byte is the begin of the next request, already on its way; nothing is the peer's FIN, an error its RST.
                following = b"" if watching.exception() else watching.result()
                if following:
                    await asyncio.wait({answering})
            if not answering.done():
                raise ConnectionResetError
            outcome, reusable = answering.result()
            self._end(record, outcome)
        except ConnectionError:
            self._end(record, Outcome.CLOSED_BY_PEER)
            return None
        except asyncio.CancelledError:
            self._end(record, Outcome.STOPPED)
            raise
        finally:
            answering.cancel()
            watching.cancel()
            await asyncio.gather(answering, watching, return_exceptions=True)
        return following if reusable else None

    async def _answer(
        self, request: wire.HttpRequest, record: RecordedRequest, dialect: Dialect, writer: StreamWriter
    ) -> tuple[Outcome, bool]:
        reply, behaviour = self._refusal(request, record, dialect), Behaviour()
        if reply is None:
            try:
                behaviour = self._script.behaviour_for(record)
                reply = await self._make(record, behaviour, dialect)
            except DirectiveError as error:
                message = f"The simulator does not understand: {error}."
                reply = json_reply(400, dialect.error_for(400, "simulator_error", "simulator_directive", message))
            except Exception as error:
                logger.exception("The simulator itself failed.")
                reply = json_reply(500, dialect.error_for(500, "simulator_error", "simulator_bug", repr(error)))
        request_id = f"req_{uuid.uuid4().hex}"
        own = {"server": "provider-simulator", "x-request-id": request_id, "request-id": request_id}
        reply = Reply(reply.status, reply.body, reply.content_type, {**own, **reply.headers}, reply.stream)
        await asyncio.sleep(self.latency if behaviour.delay is None else behaviour.delay)
        answers = behaviour.wire not in (Wire.HANG, Wire.RESET_BEFORE)
        self._records.update(record, status=reply.status if answers else None)
        interval = self.drip_interval if behaviour.interval is None else behaviour.interval
        reusable = await wire.send(writer, reply, behaviour, interval)
        closing = request.headers.get("connection", "").lower() == "close"
        reset = behaviour.wire in (Wire.RESET_BEFORE, Wire.RESET_MID_BODY)
        return Outcome.RESET if reset else Outcome.ANSWERED, reusable and not closing

    async def _make(self, record: RecordedRequest, behaviour: Behaviour, dialect: Dialect) -> Reply:
        if behaviour.answer is Answer.GZIP_BOMB:
            # Packing it takes a few hundred milliseconds, which the other connections shall not wait for.
            return await asyncio.to_thread(reply_for, record, behaviour, dialect, self.origin)
        return reply_for(record, behaviour, dialect, self.origin)

    def _refusal(self, request: wire.HttpRequest, record: RecordedRequest, dialect: Dialect) -> Reply | None:
        """What keeps a request from being answered: its path, its method, its key, its form. In the order of real providers."""
        listing = request.path == "/v1/models"
        if request.path not in DIALECTS and not listing:
            return json_reply(404, dialect.error_for(404, code="unknown_url", message=f"Unknown request URL: {request.path[:100]}"))
        if request.method != ("GET" if listing else "POST"):
            return json_reply(405, dialect.error_for(405), {"allow": "GET" if listing else "POST"})
        key = dialect.key(request.headers)
        if listing:
            key = key or request.headers.get("x-api-key", "")
        if not key or key.startswith("bad-"):
            # Real providers echo parts of the key, too: what they answer must not be shown to anybody.
            message = f"Incorrect API key provided: {key[:8]}{'*' * 12}{key[-4:]}." if key else "You didn't provide an API key."
            return json_reply(401, dialect.error_for(401, message=message), {"www-authenticate": "Bearer"})
        if listing:
            created = {"object": "model", "created": 1767225600, "owned_by": "simulator"}
            return json_reply(200, {"object": "list", "data": [{"id": name, **created} for name in MODELS]})
        fault = dialect.fault(request.headers, record.body)
        return json_reply(400, dialect.error_for(400, message=fault)) if fault else None

    def _control(self, request: wire.HttpRequest) -> Reply:
        match request.method, request.path:
            case "GET", "/healthz":
                return json_reply(200, {"status": "ok"})
            case "GET", "/_control/requests":
                return json_reply(200, [record.as_json() for record in self.requests])
            case "POST", "/_control/clear":
                self.clear()
                return json_reply(200, {"status": "ok"})
            case "POST", "/_control/script":
                try:
                    wanted: Any = request.document
                    behaviours = [Behaviour.from_json(made) for made in wanted["behaviours"]]
                    if not isinstance(wanted["match"], str):
                        raise ValueError("match is a text")
                except (KeyError, TypeError, ValueError) as error:
                    return json_reply(400, {"error": f'{error}; wanted is {{"match": "text", "behaviours": ["status=500"]}}'})
                self._script.add(wanted["match"], behaviours)
                return json_reply(200, {"status": "ok"})
        return json_reply(404, {"error": "There is /healthz, /_control/requests, /_control/script and /_control/clear."})

    def _end(self, record: RecordedRequest, outcome: Outcome) -> None:
        now = time.monotonic()
        closed_at = now if outcome is Outcome.CLOSED_BY_PEER else None
        ended = self._records.update(record, outcome=outcome, ended_at=now, closed_by_peer_at=closed_at)
        if self._access_log:
            took = round((now - record.at) * 1000)
            self._access_log(
                f"{time.strftime('%H:%M:%S')} {record.method} {record.path} {ended.status or '-'} {took} ms "
                f"model={record.model[:80]!r} prompt={len(record.prompt)} {outcome}"
            )
