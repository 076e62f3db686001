"""LISTEN on a connection of its own, which is made anew when it breaks."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import psycopg
from django.db import connection
from psycopg import sql


class Listener:
    """Waits for hints. Not thread-safe; a lost hint is harmless, since everyone also looks. `name` is what the server shows."""

    def __init__(self, channels: Sequence[str], *, name: str) -> None:
        self._channels, self._name = channels, name
        self._connection: psycopg.Connection[Any] | None = None

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def wait(self, seconds: float) -> list[str]:
        """The payloads of what arrived within the time, as soon as something did; empty when nothing did. Raises psycopg.Error."""
        try:
            return [hint.payload for hint in self._connected().notifies(timeout=max(0.0, seconds), stop_after=1)]
        except psycopg.Error:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            parameters = {**connection.get_connection_params(), "autocommit": True}
            for name in ("cursor_factory", "context", "prepare_threshold"):
                parameters.pop(name, None)
            self._connection = psycopg.connect(**parameters, application_name=self._name)
            for channel in self._channels:
                self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        return self._connection
