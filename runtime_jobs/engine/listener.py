"""LISTEN on a connection of its own, which is made anew when it breaks."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import psycopg
from django.db import connection
from psycopg import sql


class Listener:
    """Waits for notifications. Not thread-safe; a lost one is harmless, since everyone also polls."""

    def __init__(self, channels: Sequence[str]) -> None:
        self._channels = channels
        self._connection: psycopg.Connection[Any] | None = None

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._drop()

    def wait(self, seconds: float) -> list[str]:
        """Payloads of what arrived within the time, as soon as something did; empty when nothing did. Raises psycopg.Error."""
        try:
            return [hint.payload for hint in self._connected().notifies(timeout=seconds, stop_after=1)]
        except psycopg.Error:
            self._drop()
            raise

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            parameters = {**connection.get_connection_params(), "autocommit": True}
            for name in ("cursor_factory", "context", "prepare_threshold"):
                parameters.pop(name, None)
            self._connection = psycopg.connect(**parameters, application_name="ai-jobs listen")
            for channel in self._channels:
                self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
