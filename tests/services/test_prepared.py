"""Statements that are prepared: taken apart once, bound by the server, the same whoever looks on."""

import psycopg
import pytest
from django.db import IntegrityError, connection
from django.test.utils import CaptureQueriesContext

from runtime_jobs import prepared

pytestmark = pytest.mark.django_db

TWICE = "SELECT %(a)s::text, %(b)s::int, %(a)s::text || '%%', 7 %% 4"


def test_names_become_numbers():
    assert prepared.numbered(TWICE) == ("SELECT $1::text, $2::int, $1::text || '%', 7 % 4", ("a", "b"))
    assert prepared.numbered("SELECT 1") == ("SELECT 1", ())


def test_a_statement_says_the_same_when_somebody_looks_at_the_queries():
    values = {"b": 2, "a": "it's $1 and %(b)s", "unused": object()}
    alone = prepared.run(TWICE, values)
    with CaptureQueriesContext(connection) as seen:
        looked_at = prepared.run(TWICE, {**values, "unused": 1})
    assert alone == looked_at == [("it's $1 and %(b)s", 2, "it's $1 and %(b)s%", 3)]
    assert len(seen) == 1


def test_it_is_prepared_once_on_a_connection():
    for number in range(3):
        prepared.run("SELECT %(n)s::text AS once", {"n": str(number)})
    with psycopg.Cursor(connection.connection) as cursor:
        cursor.execute("SELECT generic_plans + custom_plans FROM pg_prepared_statements WHERE statement = 'SELECT $1::text AS once'")
        assert cursor.fetchall() == [(3,)]


def test_a_missing_value_and_an_error_of_the_database_are_told():
    with pytest.raises(KeyError):
        prepared.run(TWICE, {"a": "x"})
    with pytest.raises(IntegrityError):
        prepared.run("INSERT INTO runtime_service_token (id) VALUES (%(id)s::uuid)", {"id": None})
