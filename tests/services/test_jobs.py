"""What applications and staff ask for: a job is made as it was asked or not at all; reruns and cancels follow the rules."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from runtime_jobs import registry
from runtime_jobs.errors import (
    CredentialUnavailable,
    IdempotencyConflict,
    InvalidPayload,
    InvalidRequest,
    JobNotCancellable,
    JobNotFound,
    JobNotRerunnable,
    PayloadTooLarge,
    ServiceError,
    UnknownJobType,
)
from runtime_jobs.models import AiJobAttempt, AiJobEvent, AiJobSnapshot, AiRuntimeJob, AiRuntimeResult
from runtime_jobs.registry import JobDefinition
from runtime_jobs.services import jobs, notify
from runtime_jobs.services.credentials import revoke_credential
from runtime_jobs.services.events import Actor
from runtime_jobs.services.payloads import canonical, digest
from runtime_jobs.states import ApiKeyMode, JobStatus, Lane
from tests.factories import CredentialFactory, payload
from tests.services import worker as act
from tests.services.steps import change, events, make_user, row

pytestmark = pytest.mark.django_db

STAFF = Actor("7", "staff")


@pytest.fixture
def user() -> Any:
    return make_user()


@pytest.fixture
def ask(user: Any) -> Callable[..., AiRuntimeJob]:
    """Create a job; what is not said is good."""
    CredentialFactory()

    def ask(**said: Any) -> AiRuntimeJob:
        request = {"user": user, "job_type": act.INTERACTIVE, "payload": payload(), "target_type": "document", "target_id": "1"}
        return jobs.create_job(**{**request, **said})

    return ask


class Anything(JobDefinition):
    """Takes any JSON in one member, so that a test can look at JSON itself."""

    job_type = "test.anything"
    lane = Lane.INTERACTIVE
    input_schemas = {"1": {}}
    output_schemas = {"1": {}}

    class _Open:
        def issues(self, instance: Any) -> tuple[()]:
            return ()

    compiled_input = {"1": _Open()}  # type: ignore[dict-item]


@pytest.fixture
def anything(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(registry._definitions, Anything.job_type, Anything())
    return Anything.job_type


def nothing_is_stored() -> bool:
    return not any(model.objects.exists() for model in (AiRuntimeJob, AiJobSnapshot, AiJobEvent))


# --- what a new job is ---------------------------------------------------------------------------------------------------------


def test_a_new_job_has_what_was_asked_and_the_definitions_defaults(ask, user, settings):
    """Acceptance 1."""
    definition = registry.get(act.INTERACTIVE)
    job = ask(target_type="contract", target_id="42", traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    said = {
        "user_id": user.pk,
        "job_type": act.INTERACTIVE,
        "lane": definition.lane,
        "target_type": "contract",
        "target_id": "42",
        "status": JobStatus.QUEUED,
        "priority": 5,
        "idempotency_key": None,
        "api_key_mode": ApiKeyMode.PLATFORM,
        "model_provider": settings.DEFAULT_MODEL_PROVIDER,
        "model_name": settings.DEFAULT_MODEL_NAME,
        "prompt_version": definition.prompt_version,
        "input_schema_version": definition.input_schema_version,
        "output_schema_version": definition.output_schema_version,
        "max_retry_count": definition.max_retry_count,
        "timeout_seconds": definition.timeout_seconds,
        "attempt_no": 0,
        "retry_count": 0,
        "retried_from_job_id": None,
        "locked_by": None,
        "locked_at": None,
        "lock_until": None,
        "started_at": None,
        "finished_at": None,
        "error_code": "",
        "error_message": "",
        "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    }
    stored = row(job)
    assert {name: stored[name] for name in said} == said
    assert stored["created_at"] == stored["updated_at"] == stored["available_at"]
    assert job.snapshot.payload == payload()
    [event] = AiJobEvent.objects.all()
    assert (event.job_id, event.seq, event.name, event.data) == (job.pk, 1, "job.created", {"status": "queued"})
    assert (event.actor_id, event.actor_name) == (str(user.pk), user.get_username())


def test_what_is_said_goes_before_the_definition(ask):
    credential = CredentialFactory(provider="openai")
    said = {"priority": 9, "model_provider": "openai", "model_name": "big", "max_retry_count": 0, "timeout_seconds": 7}
    job = ask(**said, credential=credential, actor=Actor("1", "importer"))
    stored = row(job)
    assert {name: stored[name] for name in said} == said
    assert stored["credential_id"] == credential.pk
    assert AiJobEvent.objects.get().actor_name == "importer"


# --- what is refused -----------------------------------------------------------------------------------------------------------

TEXT_BOUNDS = {"target_type": 100, "target_id": 200, "idempotency_key": 200, "model_provider": 50, "model_name": 200}
NUMBER_BOUNDS = {"priority": (0, 9), "max_retry_count": (0, 20), "timeout_seconds": (1, 86_400)}
OUT_OF_BOUNDS = [
    *((name, value) for name, most in TEXT_BOUNDS.items() for value in ("", "x" * (most + 1), 5)),
    *((name, value) for name, (low, high) in NUMBER_BOUNDS.items() for value in (low - 1, high + 1, "3", 3.0, True)),
    ("target_type", None),
    ("target_id", None),
    ("priority", None),
    ("api_key_mode", "company"),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_BOUNDS)
def test_an_argument_out_of_its_bounds_is_refused_by_name_and_nothing_is_stored(ask, name, value):
    with pytest.raises(InvalidRequest) as refused:
        ask(**{name: value})
    assert (refused.value.code, refused.value.details["field"]) == ("invalid_request", name)
    assert name in refused.value.message
    assert nothing_is_stored()


@pytest.mark.parametrize(("name", "most"), TEXT_BOUNDS.items())
def test_the_longest_text_is_taken(ask, name, most):
    credential = CredentialFactory(provider="x" * 50) if name == "model_provider" else None
    assert len(row(ask(**{name: "x" * most}, credential=credential))[name]) == most


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, bounds in NUMBER_BOUNDS.items() for value in bounds])
def test_the_smallest_and_the_largest_number_are_taken(ask, name, value):
    assert row(ask(**{name: value}))[name] == value


def test_an_unknown_job_type_is_refused_with_those_that_are_known(ask):
    with pytest.raises(UnknownJobType, match=r"synthetic\.extract_facts") as refused:
        ask(job_type="no.such")
    assert refused.value.code == "unknown_job_type"
    assert nothing_is_stored()


def test_a_payload_that_breaks_the_schema_is_refused_with_every_finding(ask):
    with pytest.raises(InvalidPayload, match=act.INTERACTIVE) as refused:
        ask(payload={"paragraphs": [{"id": "1", "text": ""}], "secret": "hush"})
    assert refused.value.code == "invalid_payload"
    assert {issue["path"] for issue in refused.value.details["issues"]} >= {"/paragraphs/0/id", "/paragraphs/0/text"}
    assert "hush" not in json.dumps(refused.value.details) + refused.value.message
    assert nothing_is_stored()


def test_a_payload_of_the_largest_size_is_taken_and_one_byte_more_is_not(ask, settings):
    exact = payload("é" * 1_000)
    settings.JOB_MAX_SNAPSHOT_BYTES = len(canonical(exact)[1].encode())
    assert ask(payload=exact).snapshot.size_bytes == settings.JOB_MAX_SNAPSHOT_BYTES
    settings.JOB_MAX_SNAPSHOT_BYTES -= 1
    with pytest.raises(PayloadTooLarge, match="JOB_MAX_SNAPSHOT_BYTES") as refused:
        ask(payload=exact)
    assert (refused.value.code, refused.value.details) == ("payload_too_large", {"max_bytes": settings.JOB_MAX_SNAPSHOT_BYTES})
    assert AiRuntimeJob.objects.count() == 1


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (float("nan"), "not JSON"),
        (float("inf"), "not JSON"),
        ("a\x00b", "NUL"),
        ("\ud800", "surrogate"),
        ({"\x00": 1}, "NUL"),
        ({"\udfff": 1}, "surrogate"),
        ({1: 1}, "member names"),
        (b"bytes", "bytes"),
        ({1, 2}, "set"),
        (nested(64), "deeper"),
    ],
)
def test_what_json_or_the_database_cannot_hold_is_refused_and_nothing_is_stored(ask, anything, value, says):
    with pytest.raises(InvalidPayload, match=says) as refused:
        ask(job_type=anything, payload={"value": value})
    assert refused.value.code == "invalid_payload"
    assert nothing_is_stored()


def test_a_number_that_no_text_form_is_made_of_is_refused_too(ask, anything):
    """Python refuses to write more than 4,300 digits, with a ValueError of its own."""
    with pytest.raises(InvalidPayload):
        ask(job_type=anything, payload={"value": 10**5_000})
    assert nothing_is_stored()


@pytest.mark.parametrize(("name", "value"), [("target_id", "a\x00b"), ("target_type", "\ud800"), ("idempotency_key", "\x00")])
def test_text_that_cannot_be_stored_is_refused_in_other_arguments_too(ask, name, value):
    with pytest.raises(ServiceError) as refused:
        ask(**{name: value})
    assert refused.value.code in ("invalid_payload", "invalid_request")
    assert nothing_is_stored()


@pytest.mark.parametrize(
    "value",
    [
        9_007_199_254_740_993,
        -(2**63) - 1,
        10**30,
        0.1,
        1e-7,
        1e22,
        -0.0,
        1.0,
        "",
        "ünï ∑ 🙂",
        "\u2028",
        [],
        {},
        nested(62),
        None,
        True,
        False,
    ],
)
def test_a_payload_comes_back_exactly_and_with_the_same_hash(ask, anything, value):
    snapshot = AiJobSnapshot.objects.get(pk=ask(job_type=anything, payload={"value": value}).snapshot_id)
    assert snapshot.payload == {"value": value}
    assert type(snapshot.payload["value"]) is type(canonical(value)[0])
    assert snapshot.content_hash == digest(snapshot.input_schema_version, canonical(snapshot.payload)[1])
    assert snapshot.size_bytes == len(canonical(snapshot.payload)[1].encode())


# --- credentials ---------------------------------------------------------------------------------------------------------------


def test_mode_platform_takes_the_newest_live_credential_of_the_provider(user):
    old, revoked = CredentialFactory(), CredentialFactory()
    revoke_credential(revoked.pk)
    CredentialFactory(provider="openai")
    CredentialFactory(user_id=user.pk)
    request = {"user": user, "job_type": act.INTERACTIVE, "payload": payload(), "target_type": "document", "target_id": "1"}
    assert jobs.create_job(**request).credential_id == old.pk
    newer = CredentialFactory()
    assert jobs.create_job(**request).credential_id == newer.pk


def test_mode_user_takes_the_users_own(ask, user):
    own = CredentialFactory(user_id=user.pk)
    CredentialFactory(user_id=make_user().pk)
    job = ask(api_key_mode="user")
    assert (job.credential_id, job.api_key_mode) == (own.pk, "user")


@pytest.mark.parametrize(
    ("mode", "whose", "provider", "revoked"),
    [
        ("user", "other", "simulator", False),
        ("user", "platform", "simulator", False),
        ("platform", "own", "simulator", False),
        ("platform", "other", "simulator", False),
        ("platform", "platform", "openai", False),
        ("user", "own", "openai", False),
        ("platform", "platform", "simulator", True),
        ("user", "own", "simulator", True),
    ],
)
def test_a_credential_that_the_job_may_not_use_is_refused_and_nothing_is_stored(ask, user, mode, whose, provider, revoked):
    owner = {"own": user.pk, "other": make_user().pk, "platform": None}[whose]
    credential = CredentialFactory(user_id=owner, provider=provider)
    if revoked:
        revoke_credential(credential.pk)
        credential.refresh_from_db()
    with pytest.raises(CredentialUnavailable) as refused:
        ask(api_key_mode=mode, credential=credential)
    assert refused.value.code == "credential_unavailable"
    assert nothing_is_stored()


def test_mode_user_never_falls_back_on_the_platforms_key(ask):
    with pytest.raises(CredentialUnavailable):
        ask(api_key_mode="user")
    assert nothing_is_stored()


# --- the same again ------------------------------------------------------------------------------------------------------------


def test_the_same_key_with_the_same_request_gives_the_same_job(ask):
    """Acceptance 4. The order of members is no part of a request."""
    first = ask(idempotency_key="k", payload={"paragraphs": [{"id": "p1", "text": "A"}]})
    again = ask(idempotency_key="k", payload={"paragraphs": [{"text": "A", "id": "p1"}]})
    assert again.pk == first.pk
    assert (AiRuntimeJob.objects.count(), AiJobEvent.objects.count()) == (1, 1)


@pytest.mark.parametrize(
    "other",
    [
        {"payload": payload("Another text.")},
        {"target_id": "2"},
        {"target_type": "letter"},
        {"priority": 6},
        {"model_name": "another"},
        {"max_retry_count": 1},
        {"timeout_seconds": 1},
        {"job_type": act.BACKGROUND},
    ],
)
def test_the_same_key_with_another_request_is_a_conflict(ask, other):
    """Acceptance 4, engine 7."""
    ask(idempotency_key="k")
    with pytest.raises(IdempotencyConflict) as refused:
        ask(idempotency_key="k", **other)
    assert refused.value.code == "idempotency_conflict"
    assert (AiRuntimeJob.objects.count(), AiJobSnapshot.objects.count()) == (1, 1)


def test_the_same_key_of_another_user_is_a_conflict_and_shows_nothing_of_the_job(ask):
    job = ask(idempotency_key="k")
    with pytest.raises(IdempotencyConflict) as refused:
        ask(idempotency_key="k", user=make_user())
    assert str(job.pk) not in refused.value.message + str(refused.value.details)


@pytest.mark.parametrize("fate", ["cancelled", "credential revoked"])
def test_a_key_keeps_its_job_whatever_has_become_of_it(ask, fate):
    job = ask(idempotency_key="k")
    if fate == "cancelled":
        jobs.cancel_job(job.pk, actor=STAFF)
    else:
        revoke_credential(job.credential_id)
    assert ask(idempotency_key="k").pk == job.pk


def test_without_a_key_the_same_request_is_another_job(ask):
    assert ask().pk != ask().pk


def test_equal_content_is_stored_once_and_other_content_apart(ask):
    same = [ask(target_id="1"), ask(target_id="2"), ask(user=make_user(), priority=1)]
    other = ask(payload=payload("Another text."))
    assert len({job.snapshot_id for job in same}) == 1
    assert other.snapshot_id != same[0].snapshot_id
    assert AiJobSnapshot.objects.count() == 2


# --- the caller's transaction --------------------------------------------------------------------------------------------------


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What workers were told, and when they could already see."""
    sent: list[tuple[str, str]] = []
    monkeypatch.setattr(notify, "_send", lambda channel, text: sent.append((channel, text)))
    return sent


@pytest.mark.django_db(transaction=True)
def test_a_job_is_part_of_the_callers_transaction_and_workers_hear_of_it_after_the_commit(ask, told):
    with transaction.atomic():
        ask()
        assert told == []
    assert told == [(notify.lane_channel(Lane.INTERACTIVE), "")]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("key", [None, "k"])
def test_a_rollback_leaves_nothing_and_nobody_hears_of_it(ask, told, key):
    class Regret(Exception):
        pass

    def regretted() -> None:
        with transaction.atomic():
            ask(idempotency_key=key)
            raise Regret

    with pytest.raises(Regret):
        regretted()
    assert nothing_is_stored()
    assert told == []
    assert ask(idempotency_key=key).status == JobStatus.QUEUED


@pytest.mark.django_db(transaction=True)
def test_a_refusal_does_not_break_the_callers_transaction(ask):
    with transaction.atomic():
        ask(idempotency_key="k")
        refused: list[dict[str, Any]] = [
            {"idempotency_key": "k", "target_id": "2"},
            {"payload": {}},
            {"job_type": "no.such"},
            {"api_key_mode": "user"},
        ]
        for bad in refused:
            with pytest.raises(ServiceError):
                ask(**bad)
        make_user()
    assert AiRuntimeJob.objects.count() == 1


# --- reruns --------------------------------------------------------------------------------------------------------------------


def ended(job: AiRuntimeJob, how: str) -> AiRuntimeJob:
    if how == "cancelled":
        jobs.cancel_job(job.pk, actor=STAFF)
    else:
        held = act.take_one(lane=Lane(job.lane))
        assert held.job_id == job.pk
        act.deliver(held) if how == "succeeded" else act.reject(held)
    job.refresh_from_db()
    assert job.status == how
    return job


@pytest.mark.parametrize("how", ["succeeded", "failed", "cancelled"])
def test_a_rerun_is_a_new_job_from_the_same_snapshot_with_counters_at_zero(ask, how):
    """Acceptance 11, engine 20."""
    old = ended(ask(priority=8, max_retry_count=2, timeout_seconds=50, model_name="m", idempotency_key="k"), how)
    before = (row(old), list(AiRuntimeResult.objects.values()), list(AiJobAttempt.objects.values()))
    rerun = jobs.rerun_job(old.pk, actor=STAFF, reason="the model was updated")
    assert rerun.created
    new = row(rerun.job)
    same = (
        "user_id", "job_type", "lane", "target_type", "target_id", "snapshot_id", "priority", "api_key_mode", "credential_id",
        "model_provider", "model_name", "max_retry_count", "timeout_seconds", "input_schema_version", "request_fingerprint",
    )  # fmt: skip
    assert {name: new[name] for name in same} == {name: before[0][name] for name in same}
    assert (new["retried_from_job_id"], new["status"], new["idempotency_key"]) == (old.pk, "queued", None)
    assert [new[name] for name in ("attempt_no", "retry_count", "lapse_count", "release_count")] == [0, 0, 0, 0]
    assert (row(old), list(AiRuntimeResult.objects.values()), list(AiJobAttempt.objects.values())) == before
    assert events(rerun.job) == ["job.created"]
    assert events(old)[-1] == "job.rerun"
    created, noted = AiJobEvent.objects.get(job=rerun.job), AiJobEvent.objects.filter(job=old).latest("seq")
    assert created.data == {"status": "queued", "retried_from_job": str(old.pk), "reason": "the model was updated"}
    assert noted.data == {"rerun": str(rerun.job.pk), "reason": "the model was updated"}
    assert created.actor_name == noted.actor_name == "staff"


@pytest.mark.parametrize("state", ["queued", "running", "retrying", "cancel_requested"])
def test_a_job_that_has_not_ended_cannot_be_rerun_and_the_state_is_named(ask, state):
    job = ask()
    if state != "queued":
        held = act.take_one()
        if state == "retrying":
            act.fail(held)
        elif state == "cancel_requested":
            jobs.cancel_job(job.pk, actor=STAFF)
    before = row(job)
    with pytest.raises(JobNotRerunnable, match=state) as refused:
        jobs.rerun_job(job.pk, actor=STAFF)
    assert (refused.value.code, refused.value.details) == ("job_not_rerunnable", {"status": state})
    assert row(job) == before
    assert AiRuntimeJob.objects.count() == 1


def test_while_a_rerun_is_unfinished_a_second_request_gets_that_one_and_then_a_new_one(ask):
    """Acceptance 11."""
    old = ended(ask(), "cancelled")
    first = jobs.rerun_job(old.pk, actor=STAFF)
    again = jobs.rerun_job(old.pk, actor=Actor("8", "colleague"))
    assert (again.job.pk, again.created) == (first.job.pk, False)
    assert events(old).count("job.rerun") == 1
    jobs.cancel_job(first.job.pk, actor=STAFF)
    third = jobs.rerun_job(old.pk, actor=STAFF)
    assert third.created
    assert third.job.pk != first.job.pk
    assert set(AiRuntimeJob.objects.filter(retried_from_job=old)) == {first.job, third.job}


def test_a_rerun_can_be_rerun(ask):
    old = ended(ask(), "cancelled")
    first = ended(jobs.rerun_job(old.pk, actor=STAFF).job, "failed")
    second = jobs.rerun_job(first.pk, actor=STAFF).job
    assert second.retried_from_job_id == first.pk
    assert second.snapshot_id == old.snapshot_id


def test_a_rerun_takes_the_platforms_new_key_when_the_old_one_is_revoked(ask):
    old = ended(ask(), "cancelled")
    newer = CredentialFactory()
    revoke_credential(old.credential_id)
    assert jobs.rerun_job(old.pk, actor=STAFF).job.credential_id == newer.pk


def test_a_rerun_with_the_users_own_key_needs_that_key(ask, user):
    own = CredentialFactory(user_id=user.pk)
    old = ended(ask(api_key_mode="user"), "cancelled")
    revoke_credential(own.pk)
    with pytest.raises(CredentialUnavailable):
        jobs.rerun_job(old.pk, actor=STAFF)
    assert AiRuntimeJob.objects.count() == 1
    assert events(old)[-1] != "job.rerun"


def test_a_rerun_of_a_type_that_is_gone_is_refused(ask, anything, monkeypatch):
    old = ended(ask(job_type=anything, payload={}), "cancelled")
    monkeypatch.delitem(registry._definitions, anything)
    with pytest.raises(UnknownJobType):
        jobs.rerun_job(old.pk, actor=STAFF)
    assert AiRuntimeJob.objects.count() == 1


@pytest.mark.parametrize("call", [jobs.rerun_job, jobs.cancel_job])
def test_a_job_that_does_not_exist_is_not_found(call):
    with pytest.raises(JobNotFound) as refused:
        call(uuid.uuid4(), actor=STAFF)
    assert refused.value.code == "job_not_found"


# --- cancels -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["queued", "retrying"])
def test_a_waiting_job_is_cancelled_at_once(ask, state):
    job = ask()
    if state == "retrying":
        act.fail(act.take_one())
    cancelled = jobs.cancel_job(job.pk, actor=STAFF, reason="not needed")
    stored = row(job)
    assert cancelled.status == stored["status"] == "cancelled"
    assert stored["finished_at"] == stored["cancel_requested_at"] is not None
    assert (stored["cancel_requested_by"], stored["cancel_reason"], stored["error_code"]) == ("staff", "not needed", "cancelled")
    told = AiJobEvent.objects.filter(job=job).latest("seq")
    assert (told.name, told.actor_name, told.data) == ("job.cancelled", "staff", {"status": "cancelled", "reason": "not needed"})
    assert act.take() == []


@pytest.mark.django_db(transaction=True)
def test_a_running_job_is_asked_to_stop_and_asking_again_changes_nothing(ask, told):
    job = ask()
    held = act.take_one()
    told.clear()
    assert jobs.cancel_job(job.pk, actor=STAFF, reason="first").status == "cancel_requested"
    assert told == [(notify.CANCEL_CHANNEL, str(job.pk))]
    before = row(job)
    assert jobs.cancel_job(job.pk, actor=Actor("8", "colleague"), reason="second").status == "cancel_requested"
    assert row(job) == before
    assert (before["cancel_requested_by"], before["cancel_reason"]) == ("staff", "first")
    assert before["locked_by"] == held.worker
    assert events(job) == ["job.created", "job.claimed", "job.cancel_requested"]


@pytest.mark.parametrize("how", ["succeeded", "failed", "cancelled"])
def test_a_job_that_has_ended_cannot_be_cancelled_and_the_state_is_named(ask, how):
    job = ended(ask(), how)
    before = (row(job), events(job))
    with pytest.raises(JobNotCancellable, match=how) as refused:
        jobs.cancel_job(job.pk, actor=STAFF)
    assert (refused.value.code, refused.value.details) == ("job_not_cancellable", {"status": how})
    assert (row(job), events(job)) == before


def test_a_long_reason_is_cut_not_refused(ask):
    job = jobs.cancel_job(ask().pk, actor=STAFF, reason="x" * 2_000)
    assert job.cancel_reason == "x" * 500


def test_an_offered_job_is_cancelled_at_once_and_its_offer_is_gone(ask):
    job = change(ask(), offered_to="runtime-1", offer_until=ask().created_at)
    stored = row(jobs.cancel_job(job.pk, actor=STAFF))
    assert (stored["status"], stored["offered_to"], stored["offer_until"]) == ("cancelled", None, None)
