"""The migrations: reversible, complete, and safe on a large table."""

import uuid

import psycopg
import pytest
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections

OURS = [model for label in ("runtime_jobs", "synthetic") for model in apps.get_app_config(label).get_models()]


@pytest.fixture
def scratch(django_db_setup, django_db_blocker):
    """The alias of an empty database of its own on the test server."""
    name = f"scratch_{uuid.uuid4().hex}"
    conninfo = {key: value for key, value in connection.get_connection_params().items() if key in ("host", "port", "user", "password")}

    def administer(sql):
        with psycopg.connect(**conninfo, dbname="postgres", autocommit=True) as server:
            server.execute(sql)

    administer(f"CREATE DATABASE {name}")
    connections.settings["scratch"] = {**connections.settings["default"], "NAME": name}
    try:
        with django_db_blocker.unblock():
            yield "scratch"
    finally:
        connections["scratch"].close()
        del connections["scratch"], connections.settings["scratch"]
        administer(f"DROP DATABASE {name} WITH (FORCE)")


SCHEMA = """
    SELECT 'column', table_name, column_name, concat_ws(' ', data_type, character_maximum_length, is_nullable, column_default)
    FROM information_schema.columns WHERE table_schema = 'public'
    UNION ALL SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
    UNION ALL SELECT 'index', tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL SELECT 'trigger', tgrelid::regclass::text, tgname, pg_get_triggerdef(t.oid) || pg_get_functiondef(tgfoid)
        FROM pg_trigger t WHERE NOT tgisinternal
    UNION ALL SELECT 'settings', oid::regclass::text, '', reloptions::text FROM pg_class
        WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND reloptions IS NOT NULL
    UNION ALL SELECT 'statistics', attrelid::regclass::text, attname, attstattarget::text FROM pg_attribute
        WHERE attrelid = to_regclass('ai_runtime_job') AND attstattarget = 0
    ORDER BY 1, 2, 3
"""


def schema_of(alias):
    tables = {model._meta.db_table for model in OURS}
    with connections[alias].cursor() as cursor:
        cursor.execute(SCHEMA)
        return [row for row in cursor.fetchall() if row[1] in tables]


def test_every_migration_goes_back_to_nothing_and_forward_to_the_same_schema(scratch):
    def migrate(*target):
        call_command("migrate", *target, database=scratch, verbosity=0)

    migrate("runtime_jobs")
    migrate("synthetic")
    made = schema_of(scratch)
    assert made == schema_of("default")  # what the tests run on
    assert {row[0] for row in made} == {"column", "constraint", "index", "trigger", "settings", "statistics"}
    migrate("synthetic", "zero")
    migrate("runtime_jobs", "zero")
    assert schema_of(scratch) == []
    migrate("runtime_jobs")
    migrate("synthetic")
    assert schema_of(scratch) == made


@pytest.mark.django_db
def test_no_migration_is_missing():
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db(transaction=True)  # an index is built concurrently outside of one only
def test_the_migration_linter_has_nothing_to_say_of_ours(capsys):
    if "django_migration_linter" not in settings.INSTALLED_APPS:
        pytest.skip("the linter comes with the `dev` extra")
    call_command("lintmigrations", "--warnings-as-errors")
    said = capsys.readouterr().out
    assert "(runtime_jobs, 0001_initial)... OK" in said
    assert "(runtime_jobs, 0005_list_indexes)... OK" in said
    assert "(synthetic, 0001_initial)... OK" in said
    assert "Erroneous migrations: 0/" in said
    assert "(django_q" not in said or "IGNORE" in said
