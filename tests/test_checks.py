"""The system checks: the settings as they are pass, and each trap is named before the engine steps into it."""

import io
import subprocess
import sys
from copy import deepcopy
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import override_settings

from runtime_jobs.checks import BROKER, RENEWAL_TICK_SECONDS, SPARE_FILES, check_settings
from runtime_jobs.engine import lease
from runtime_jobs.engine.broker import PROCESSORS, TicketBroker
from runtime_jobs.management.commands.run_engine import Command
from tests.support.processes import ROOT, environment


def ids():
    return [str(message.id).removeprefix("runtime_jobs.") for message in check_settings()]


def cluster(lane=None, *, without=(), **changes):
    """Q_CLUSTER with other values, in one lane or in all."""
    changed: dict[str, Any] = deepcopy(settings.Q_CLUSTER)
    for name, own in changed["ALT_CLUSTERS"].items():
        if lane in (None, name):
            own.update(changes)
    for key in without:
        del changed[key]
        for own in changed["ALT_CLUSTERS"].values():
            del own[key]
    return override_settings(Q_CLUSTER=changed)


def test_the_settings_as_they_are_pass():
    assert check_settings() == []
    call_command("check", stdout=io.StringIO())


@pytest.mark.parametrize(
    ("number", "key", "values"),
    [
        ("E001", "scheduler", [True, None, 0]),
        ("E002", "save_limit", [250, 0, -2]),
        ("E003", "guard_cycle", [0.1, 0.2, 2]),
        ("E004", "timeout", [None, 60, -1.0, "-1"]),
        ("E005", "queue_limit", [1, 3]),
        ("E006", "broker_class", [None, "django_q.brokers.orm.ORM"]),
        ("E007", "recycle", [500, 50]),
        ("E008", "bulk", [2]),
    ],
)
def test_a_value_of_a_lanes_cluster_that_springs_a_trap_is_named_with_its_lane(number, key, values):
    for value in values:
        with cluster("background", **{key: value}, workers=2):
            (error,) = check_settings()
        assert error.id == f"runtime_jobs.{number}"
        assert f"lane background: {key} is {value!r}" in error.msg
        assert key in str(error.hint)


@pytest.mark.parametrize(
    ("number", "key"),
    [("E001", "scheduler"), ("E002", "save_limit"), ("E004", "timeout"), ("E006", "broker_class"), ("E007", "recycle")],
)
def test_a_key_that_is_left_out_counts_as_what_django_q2_makes_of_it(number, key):
    with cluster(without=[key]):
        assert ids() == [number, number], "one for each lane"


def test_a_lane_inherits_what_it_does_not_say_itself():
    changed = deepcopy(settings.Q_CLUSTER)
    changed["ALT_CLUSTERS"] = {lane: {} for lane in settings.ENGINE_LANES}
    with override_settings(Q_CLUSTER=changed):
        assert ids() == []
    changed["save_limit"] = 0
    with override_settings(Q_CLUSTER=changed):
        assert ids() == ["E002", "E002"]


@pytest.mark.parametrize("found", [None, {}, {"interactive": {}}, {"interactive": {}, "background": {}, "extra": {}}])
def test_clusters_that_are_not_the_lanes_are_refused(found):
    with override_settings(Q_CLUSTER={**settings.Q_CLUSTER, "ALT_CLUSTERS": found}):
        assert ids() == ["E010"]


def test_a_lane_name_with_a_typo_is_refused_and_none_is_fine(monkeypatch):
    monkeypatch.setenv("Q_CLUSTER_NAME", "interactve")
    (error,) = check_settings()
    assert error.id == "runtime_jobs.E011"
    assert error.hint == "Set Q_CLUSTER_NAME to interactive or background, not 'interactve'."
    for name in ("", "background"):
        monkeypatch.setenv("Q_CLUSTER_NAME", name)
        assert ids() == []


@pytest.mark.parametrize("pool", [True, {"min_size": 1}])
def test_a_connection_pool_is_refused(monkeypatch, pool):
    monkeypatch.setitem(settings.DATABASES["default"]["OPTIONS"], "pool", pool)
    assert ids() == ["E009"]


def test_more_attempts_than_open_files_allow_are_refused(monkeypatch):
    most = 1_000 - SPARE_FILES - settings.ENGINE_CONNECTIONS
    monkeypatch.setattr("resource.getrlimit", lambda _: (1_000, 1_000_000))
    with override_settings(ENGINE_CONCURRENCY=most):
        assert ids() == []
    with override_settings(ENGINE_CONCURRENCY=most + 1):
        (error,) = check_settings()
    assert error.id == "runtime_jobs.E012"
    assert "ulimit -n 1001" in str(error.hint)


def test_no_limit_of_open_files_is_fine(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (-1, -1))
    with override_settings(ENGINE_CONCURRENCY=1_000_000):
        assert ids() == []


@pytest.mark.parametrize("keys", [[], ["k1"], ["k1:c2hvcnQ="], ["k1:not base64"], [":" + "A" * 43 + "="]])
def test_a_malformed_key_ring_is_refused_without_showing_it(keys):
    with override_settings(CREDENTIAL_KEYS=keys):
        (error,) = check_settings()
    assert error.id == "runtime_jobs.E013"
    assert not any(key.partition(":")[2] in error.msg for key in keys if ":" in key)


def test_a_lease_that_cannot_be_renewed_in_time_is_refused():
    with override_settings(ENGINE_LEASE_SECONDS=0.8):
        assert ids() == []
    with override_settings(ENGINE_LEASE_SECONDS=0.7):
        assert ids() == ["E014"]


@pytest.mark.parametrize("setting", ["DEFAULT_MODEL_PROVIDER", "DEFAULT_MODEL_NAME"])
def test_an_empty_default_model_is_refused_while_a_definition_relies_on_it(setting):
    with override_settings(**{setting: ""}):
        (error,) = check_settings()
    assert error.id == "runtime_jobs.E015"
    assert setting in error.msg
    assert "synthetic.extract_facts" in error.msg


def test_every_error_says_what_to_set():
    with cluster(scheduler=True, timeout=None, queue_limit=1, bulk=3), override_settings(CREDENTIAL_KEYS=[], ENGINE_LEASE_SECONDS=0.1):
        errors = check_settings()
    assert len(errors) == 10
    assert all(str(error.hint).startswith(("Set ", "Give ", "Remove ", "Lower ")) for error in errors)
    assert all(error.msg.endswith(".") for error in errors)


def test_what_the_checks_repeat_is_what_the_engine_has():
    assert RENEWAL_TICK_SECONDS == lease._TICK_SECONDS
    assert f"{TicketBroker.__module__}.{TicketBroker.__qualname__}" == BROKER
    assert set(PROCESSORS) == set(settings.ENGINE_LANES)


def test_the_engine_runs_the_checks_before_it_starts():
    with cluster(timeout=None), pytest.raises(SystemCheckError) as refused:
        call_command(Command(), skip_checks=False)
    assert refused.value.returncode == 2


@pytest.mark.django_db
def test_an_engine_with_wrong_settings_says_so_and_ends_with_status_2():
    done = subprocess.run(
        [sys.executable, "manage.py", "run_engine"],
        cwd=ROOT,
        env=environment(Q_CLUSTER_NAME="interactive", CREDENTIAL_KEYS="k1:c2hvcnQ=", DEFAULT_MODEL_NAME=""),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "(runtime_jobs.E013) CREDENTIAL_KEYS must be id:base64 of 32 bytes" in done.stderr
    assert "(runtime_jobs.E015) DEFAULT_MODEL_NAME is empty" in done.stderr
    assert "c2hvcnQ" not in done.stderr
