"""A day's work of staff: log in, filter, look, rerun, cancel, many at once; by mouse and by keyboard; in both languages."""

import re
from functools import partial

import pytest
from playwright.sync_api import expect

from runtime_jobs.models import AiJobEvent, AiRuntimeJob
from runtime_jobs.services.events import Actor
from runtime_jobs.services.jobs import cancel_job
from tests.browser.conftest import JOBS, PHONE
from tests.support.processes import wait_for

TEXT = "The Inn joins the Danube at Passau. It is 518 kilometres long."


def failed(site, number):
    """A job that the provider refuses once, and serves the next time."""
    return site.has_status(site.create(f"{TEXT} Number {number}. [[simulate: status=401 times=1]]"), "failed")


def running(site, number):
    return site.has_status(site.create(f"{TEXT} Number {number}. [[simulate: delay=60]]"), "running")


def test_log_in_filter_open_a_failed_job_rerun_it_with_a_reason_and_see_the_new_one_succeed(site, person):
    job = failed(site, "a")
    me = person()
    page = me.page
    me.log_in()
    page.click("#sections >> text=Jobs")
    page.click(".status-chips .status-failed")
    expect(page).to_have_url(re.compile("status__exact=failed"))
    page.click(f'a:has(code[title="{job.pk}"])')
    expect(page.locator(".job-status")).to_have_text(re.compile("failed"))
    expect(page.locator(".job-error")).to_contain_text("provider_auth_failed")
    page.click(".object-tools >> text=Rerun")
    assert not AiRuntimeJob.objects.filter(retried_from_job=job).exists()
    page.fill("#id_reason", "the key was renewed")
    page.click("input[type=submit].default")
    expect(page.locator(".messagelist .success")).to_be_visible()
    rerun = AiRuntimeJob.objects.get(retried_from_job=job)
    event = AiJobEvent.objects.filter(job=rerun, name="job.created").get()
    assert event.actor_name == "root"
    me.go(f"{JOBS}{rerun.pk}/change/")
    # The page sees it by itself.
    expect(page.locator(".job-status")).to_have_text(re.compile("succeeded"), timeout=30_000)
    expect(page.locator("#job-results ~ .job-result .status-succeeded")).to_be_visible()


def test_cancelling_a_running_job_asks_first_and_the_page_shows_its_end(site, person):
    job = running(site, "b")
    me = person()
    page = me.page
    me.log_in()
    me.go(f"{JOBS}{job.pk}/change/")
    page.click(".object-tools >> text=Cancel")
    page.click("text=Go back, change nothing")
    assert site.has_status(job, "running")
    page.click(".object-tools >> text=Cancel")
    page.fill("#id_reason", "wrong document")
    page.click("input[type=submit].danger")
    expect(page.locator(".messagelist")).to_be_visible()
    expect(page.locator(".job-status")).to_have_text(re.compile("cancelled"), timeout=30_000)
    assert site.has_status(job, "cancelled").cancel_reason == "wrong document"
    expect(page.locator(".object-tools >> text=Cancel")).to_have_count(0)


def test_all_that_match_are_rerun_and_none_besides(site, person):
    mine = [
        site.create(f"{TEXT} All {number}.", priority=number % 10, job_type="synthetic.extract_facts_background") for number in range(55)
    ]
    other = site.create(f"{TEXT} Another.")
    for job in [*mine, other]:
        wait_for(partial(_cancelled, job), what="cancelled or ended")
    me = person()
    page = me.page
    me.log_in()
    me.go(f"{JOBS}?job_type=synthetic.extract_facts_background&status__exact=cancelled")
    page.check("#action-toggle")
    page.click("text=Select all 55 jobs")
    page.select_option("select[name=action]", "rerun")
    page.click("button[name=index]")
    expect(page.locator(".confirm-count")).to_contain_text("55")
    assert not AiRuntimeJob.objects.filter(retried_from_job__in=mine).exists()
    page.fill("#id_reason", "the outage is over")
    page.click("input[type=submit].default")
    expect(page.locator(".messagelist .success")).to_contain_text("55")
    # The filter is still there.
    expect(page).to_have_url(re.compile("job_type=synthetic.extract_facts_background"))
    assert AiRuntimeJob.objects.filter(retried_from_job__in=mine).count() == 55
    assert not AiRuntimeJob.objects.filter(retried_from_job=other).exists()


def _cancelled(job):
    if AiRuntimeJob.objects.filter(pk=job.pk, status__in=("queued", "retrying")).exists():
        cancel_job(job.pk, actor=Actor("", "test"))
    return AiRuntimeJob.objects.filter(pk=job.pk, status__in=("cancelled", "succeeded", "failed")).exists()


def test_the_keyboard_alone_is_enough(site, person):
    job = failed(site, "k")
    me = person()
    page = me.page
    me.log_in()
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    # Deaf while the help is open.
    page.keyboard.press("/")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    page.keyboard.press("/")
    expect(page.locator("#site-search")).to_be_focused()
    page.keyboard.type(str(job.pk))
    page.keyboard.press("Enter")
    expect(page.locator("#searchbar")).to_have_value(str(job.pk))
    page.wait_for_load_state("load")  # each new page listens to keys from then on
    page.keyboard.press("/")
    expect(page.locator("#searchbar")).to_be_focused()
    # What is typed there is text: no help, no way elsewhere.
    page.keyboard.type("?gd")
    expect(page.locator("#keys")).to_be_hidden()
    page.locator("#searchbar").blur()
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page).to_have_url(f"{site.url}/admin/")
    page.wait_for_load_state("load")
    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page).to_have_url(f"{site.url}{JOBS}")
    me.go(f"{JOBS}{job.pk}/change/")
    page.keyboard.press("Tab")
    expect(page.locator(".skip-to-content-link")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#content-start")).to_be_focused()


def test_the_dashboard_refreshes_by_itself_and_leaves_focus_and_place_alone(site, person):
    me = person(viewport={"width": 1440, "height": 500})
    page = me.page
    me.log_in()
    value = page.locator(".tile", has_text="Running").locator(".tile-value")
    before = value.inner_text()
    page.evaluate("window.here = true; document.querySelector('.tile a').focus(); window.scrollTo(0, 300)")
    at = page.evaluate("window.scrollY")
    job = running(site, "r")
    page.keyboard.press("r")
    # What it shows may be a few seconds old, since all who look share it.
    expect(value).not_to_have_text(before, timeout=30_000)
    assert page.evaluate("window.here") is True
    assert page.evaluate("window.scrollY") == at
    assert page.evaluate("document.activeElement.matches('.tile a')")
    # Paused, nothing changes, and the choice outlives the page.
    page.keyboard.press("p")
    expect(page.locator("[data-live-state]")).to_have_text("Paused")
    me.go("/admin/")
    expect(page.locator("[data-live-pause]")).to_have_attribute("aria-pressed", "true")
    cancel_job(job.pk, actor=Actor("", "test"))
    site.has_status(job, "cancelled")
    page.click("[data-live-pause]")
    expect(value).to_have_text(before, timeout=30_000)
    expect(page.locator("[data-live-state]")).to_have_text("Refreshes by itself")


def test_a_hidden_page_asks_nothing_until_it_is_seen_again(site, person):
    me = person()
    page = me.page
    me.log_in()
    asked = []
    page.on("request", lambda request: asked.append(request.url) if request.headers.get("x-live") else None)
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true});"
        "window.away = true; document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.wait_for_timeout(300)
    assert asked == []
    page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    wait_for(lambda: page.evaluate("1") and asked, what="it asks at once")


def test_24_refreshing_stops_while_something_is_open_ticked_typed_or_selected(site, person):
    """scenario 24 of admin.md"""
    job = running(site, "s")
    me = person()
    page = me.page
    me.log_in()
    me.go(f"{JOBS}{job.pk}/change/")
    state = page.locator("[data-live-state]")
    page.evaluate("window.here = true")
    page.click("details.document summary >> nth=0")
    cancel_job(job.pk, actor=Actor("", "test"))
    site.has_status(job, "cancelled")
    expect(state).to_have_text(re.compile("Waits while"), timeout=10_000)
    expect(page.locator(".job-status")).to_have_text(re.compile("running"))
    assert page.locator("details.document").first.evaluate("one => one.open")
    page.click("details.document summary >> nth=0")
    expect(page.locator(".job-status")).to_have_text(re.compile("cancelled"), timeout=10_000)
    assert page.evaluate("window.here") is True


def test_dark_mode_follows_the_system_and_then_the_persons_own_choice(site, person):
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = person(), person(color_scheme="dark")
    for one in (light, dark):
        one.log_in()
    assert light.page.evaluate(ground) != dark.page.evaluate(ground)
    dark_ground = dark.page.evaluate(ground)
    while light.page.evaluate("document.documentElement.dataset.theme") != "dark":
        light.page.click("#header .theme-toggle")
    assert light.page.evaluate(ground) == dark_ground
    light.go(JOBS)
    assert light.page.evaluate(ground) == dark_ground


def test_the_back_office_speaks_chinese_to_whoever_chooses_it(site, person):
    me = person()
    page = me.page
    me.go("/admin/")
    page.click(".language button")
    expect(page.locator("html")).to_have_attribute("lang", "zh-hans")
    page.fill("#id_username", "root")
    page.fill("#id_password", "pass word 1")
    page.press("#id_password", "Enter")
    expect(page.locator("h1")).to_have_text("概览")
    page.click("#sections >> text=任务")
    expect(page.locator("h1")).to_have_text("任务")
    page.click(".language button")
    expect(page.locator("html")).to_have_attribute("lang", "en")


def test_on_a_phone_the_same_work_can_be_done(site, person):
    job = failed(site, "p")
    me = person(viewport=PHONE, has_touch=True, is_mobile=True)
    page = me.page
    me.log_in()
    me.go(f"{JOBS}{job.pk}/change/")
    page.tap(".object-tools >> text=Rerun")
    page.fill("#id_reason", "from the train")
    page.tap("input[type=submit].default")
    expect(page.locator(".messagelist .success")).to_be_visible()
    assert AiRuntimeJob.objects.filter(retried_from_job=job).exists()


@pytest.mark.parametrize("path", ["/admin/", JOBS])
def test_what_is_printed_is_the_page_without_what_is_only_for_clicking(site, person, path):
    me = person(color_scheme="dark")
    me.log_in()
    me.go(path)
    me.page.emulate_media(media="print")
    expect(me.page.locator("#header")).to_be_hidden()
    expect(me.page.locator("#sections")).to_be_hidden()
    expect(me.page.locator("#content")).to_be_visible()


def test_a_wrong_password_is_answered_and_a_guesser_waits(site, person):
    me = person()
    me.go("/admin/login/")
    for _ in range(6):
        me.page.fill("#id_username", "somebody")
        me.page.fill("#id_password", "guess")
        me.page.press("#id_password", "Enter")
        expect(me.page.locator(".errornote")).to_be_visible()
    expect(me.page.locator(".errornote")).to_contain_text("Too many failed log-ins. Try again in 15 minutes.")
    # The browser's own note of the status 429.
    me.complaints = [one for one in me.complaints if "429" not in one]
