"""Fixtures that all tests share."""

import contextlib
from collections.abc import Iterator

import pytest
from django.conf import settings
from django.db import connection
from django.db.backends.postgresql.operations import DatabaseOperations
from pytest_django import fixtures


def pytest_configure() -> None:
    # A password hash that is slow on purpose would be most of the suite's time.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    # pytest-django 4.14 makes a test database only where a collected test is marked. Modules with a standing system of their own have no
    # mark: without this they would run on, and empty, the developer's own database.
    fixtures._get_databases_for_setup = lambda items: ({"default"}, set())


@pytest.fixture(scope="session", autouse=True)
def _flush_passes_the_triggers() -> Iterator[None]:
    """Django empties the tables by TRUNCATE after each transactional test, which our triggers refuse to everybody."""
    original = DatabaseOperations.execute_sql_flush

    def flush(self: DatabaseOperations, statements: list[str]) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
        try:
            original(self, statements)
        finally:
            with self.connection.cursor() as cursor:
                cursor.execute("SET session_replication_role = DEFAULT")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseOperations, "execute_sql_flush", flush)
        yield


@contextlib.contextmanager
def triggers_off() -> Iterator[None]:
    """For rows that no service makes, such as a history of years."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = DEFAULT")
