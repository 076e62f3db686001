"""Every page of ours: accessible (axe), without a word on the console or a violation of the policy, and within the width of a phone."""

from typing import Any

import pytest
from django.contrib.auth.models import Group

from runtime_jobs.models import AiEventDelivery, AiJobEvent, AiRuntimeResult, AiStaffEvent, ClaimGate, RuntimeInstance
from runtime_jobs.models.base import new_id
from runtime_jobs.services import figures, gates, service_tokens, workers
from runtime_jobs.services.events import Actor
from tests.browser.conftest import DESK, JOBS, PHONE, person_with_password
from tests.factories import CredentialFactory, UserFactory
from tests.support.processes import wait_for

TEXT = "The Drau is 749 kilometres long. It joins the Danube near Osijek."
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": DESK, "color_scheme": "light"},
    "dark": {"viewport": DESK, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "light", "is_mobile": True, "has_touch": True},
    "phone, dark": {"viewport": PHONE, "color_scheme": "dark", "is_mobile": True, "has_touch": True},
    "chinese": {"viewport": DESK, "color_scheme": "light", "language": "zh-CN"},
}


@pytest.fixture(scope="module")
def pages(site):
    """An address of every kind of page, with something on each."""
    succeeded = site.has_status(site.create(TEXT), "succeeded")
    broken = site.has_status(site.create(f"{TEXT} [[simulate: bad_reference]]"), "failed")
    running = site.has_status(site.create(f"{TEXT} [[simulate: delay=120]]"), "running")
    event = AiJobEvent.objects.filter(job=succeeded).latest("seq")
    parked = AiEventDelivery.objects.create(
        id=new_id(),
        event=event,
        handler="shop.tell",
        job_id=event.job_id,
        seq=event.seq,
        tries=15,
        parked_at=event.created_at,
        last_error="x",
    )
    gate = gates.pause(ClaimGate.Kind.LANE, "background", actor=Actor("", "ann"), reason="the provider is moving")
    ClaimGate.objects.create(id=new_id(), kind="breaker", key="simulator/simulator-1", reason="the last 5 calls failed")
    gates.resume("breaker", "simulator/simulator-1")
    workers.seen("runtime-1", kind=workers.Kind.RUNTIME, lane="runtime", version="1.2", job_types=["a"])
    credential, token = CredentialFactory(name="another"), service_tokens.issue(name="blue", days=30)[0]
    result = AiRuntimeResult.objects.filter(job=broken).latest("id")
    wait_for(lambda: figures.roll_up(every_seconds=1) == 0, what="the figures are counted")
    staff_event, worker = AiStaffEvent.objects.latest("id"), RuntimeInstance.objects.latest("id")
    user, group = UserFactory(), Group.objects.get(name="viewer")
    base = "/admin/runtime_jobs"
    return {
        "dashboard": "/admin/", "dashboard, 30 days": "/admin/?window=30d",
        "jobs": JOBS, "failed jobs": f"{JOBS}?status__exact=failed", "no jobs": f"{JOBS}?q=018f0000-0000-7000-8000-000000000000",
        "succeeded": f"{JOBS}{succeeded.pk}/change/", "failed": f"{JOBS}{broken.pk}/change/", "running": f"{JOBS}{running.pk}/change/",
        "clear": f"{JOBS}{succeeded.pk}/change/?clear=1",
        "rerun": f"{JOBS}{broken.pk}/rerun/", "cancel": f"{JOBS}{running.pk}/cancel/", "release": f"{JOBS}{running.pk}/release/",
        "results": f"{base}/airuntimeresult/", "result": f"{base}/airuntimeresult/{result.pk}/change/",
        "calls": f"{base}/aiusagelog/", "call": f"{base}/aiusagelog/{succeeded.usage.get().pk}/change/",
        "events": f"{base}/aijobevent/", "event": f"{base}/aijobevent/{event.pk}/change/",
        "deliveries": f"{base}/aieventdelivery/", "delivery": f"{base}/aieventdelivery/{parked.pk}/change/",
        "retry": f"{base}/aieventdelivery/{parked.pk}/retry/",
        "workers": f"{base}/runtimeinstance/", "worker": f"{base}/runtimeinstance/{worker.pk}/change/",
        "drain": f"{base}/runtimeinstance/{worker.pk}/drain/",
        "pauses": f"{base}/claimgate/", "pause": f"{base}/claimgate/add/", "resume": f"{base}/claimgate/{gate.pk}/resume/",
        "staff": f"{base}/aistaffevent/", "what staff did": f"{base}/aistaffevent/{staff_event.pk}/change/",
        "credentials": f"{base}/aimodelcredential/", "new credential": f"{base}/aimodelcredential/add/",
        "credential": f"{base}/aimodelcredential/{credential.pk}/change/", "test call": f"{base}/aimodelcredential/{credential.pk}/test/",
        "replace key": f"{base}/aimodelcredential/{credential.pk}/replace-key/",
        "revoke": f"{base}/aimodelcredential/{credential.pk}/revoke/",
        "tokens": f"{base}/runtimeservicetoken/", "new token": f"{base}/runtimeservicetoken/add/",
        "token": f"{base}/runtimeservicetoken/{token.pk}/change/", "revoke token": f"{base}/runtimeservicetoken/{token.pk}/revoke/",
        "protocol": "/admin/runtime-protocol/",
        "users": "/admin/auth/user/", "user": f"/admin/auth/user/{user.pk}/change/", "new user": "/admin/auth/user/add/",
        "roles": "/admin/auth/group/", "role": f"/admin/auth/group/{group.pk}/change/", "password": "/admin/password_change/",
    }  # fmt: skip


@pytest.mark.parametrize("look", LOOKS)
def test_28_every_page_is_accessible_quiet_and_within_its_width(site, person, pages, look):
    """scenario 28 of admin.md"""
    me = person(**LOOKS[look])
    found = {}
    me.go("/admin/login/")
    found["login"] = me.violations()
    me.log_in()
    for name, path in pages.items():
        me.go(path)
        found[name] = me.violations()
        if me.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth + 1"):
            found[name].append(f"wider than its window: {me.page.evaluate(WIDEST)}")
        if me.complaints:
            found[name] += me.complaints
            me.complaints = []
    wrong = [f"{name}: {what}" for name, complaints in found.items() for what in complaints]
    assert not wrong, "\n".join(wrong)


# What stands out on the right, for whoever reads the failure.
WIDEST = """
[...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > document.documentElement.clientWidth + 1
    && !one.closest("#sections, .scroll, .table-scroll, .results")).slice(0, 4)
    .map((one) => `${one.tagName}.${one.className}#${one.id}`).join(" ")
"""


def test_the_columns_of_the_job_list_fit_a_usual_screen(site, person, pages):
    me = person()
    me.log_in()
    me.go(JOBS)
    assert me.page.evaluate("(() => { const one = document.querySelector('.results'); return one.scrollWidth - one.clientWidth; })()") <= 0


def test_the_help_and_an_open_chart_table_are_accessible_too(site, person, pages):
    me = person()
    me.log_in()
    for summary in me.page.locator(".chart summary").all():
        summary.click()
    assert me.violations() == []
    me.page.keyboard.press("?")
    assert me.violations() == []


def test_a_new_token_is_shown_once_on_a_page_that_is_accessible(site, person):
    me = person()
    me.log_in()
    me.go("/admin/runtime_jobs/runtimeservicetoken/add/")
    me.page.fill("#id_name", "green")
    me.page.click("input[type=submit].default")
    assert me.page.locator("#token").inner_text().startswith("rt_")
    assert me.violations() == []


def test_a_forbidden_page_is_ours_and_accessible(site, person):
    person_with_password("guest", is_staff=True)
    me = person()
    me.log_in("guest")
    assert me.violations() == []
    me.go(JOBS)
    assert me.page.locator("h1").inner_text() == "You may not do this"
    assert me.violations() == []
    me.complaints = [one for one in me.complaints if "403" not in one]
