"""What holds for every page of the back office: its headers, its language, its sections, and how often one may guess a password."""

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission
from django.db import connection, connections
from django.db.models.functions import Now
from django.test import Client
from django.utils import translation

from runtime_jobs.models import LoginTries
from runtime_jobs.services import login_throttle
from tests.factories import JobFactory, UserFactory

pytestmark = pytest.mark.django_db

LOGIN = "/admin/login/"
JOBS = "/admin/runtime_jobs/airuntimejob/"
WRONG = {"username": "ann", "password": "not it"}
RIGHT = {"username": "ann", "password": "pass word 1"}


@pytest.fixture(autouse=True)
def _english_again():
    yield
    translation.activate(settings.LANGUAGE_CODE)


def make_staff(*permissions, **more):
    user: Any = UserFactory(is_staff=True, **more)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return user


@pytest.fixture
def root(client):
    user = UserFactory(username="root", is_staff=True, is_superuser=True)
    client.force_login(user)
    return user


NOTHING = {"default-src", "base-uri", "frame-ancestors"}
OUR_OWN = {"script-src", "style-src", "img-src", "font-src", "connect-src", "form-action"}
POLICY = dict.fromkeys(NOTHING, "'none'") | dict.fromkeys(OUR_OWN, "'self'")


def policy_of(answer):
    return dict(part.strip().split(" ", 1) for part in answer["Content-Security-Policy"].split(";"))


def pages():
    job = JobFactory()
    return {
        "login": LOGIN,
        "dashboard": "/admin/",
        "list": JOBS,
        "page": f"{JOBS}{job.pk}/change/",
        "nothing": "/admin/no/such/page/",
        "no such job": f"{JOBS}018f0000-0000-7000-8000-000000000000/change/",
        "scripts": "/admin/jsi18n/",
    }


def test_every_answer_has_the_strict_policy_is_never_framed_and_never_kept(client, root):
    for name, url in pages().items():
        answer = client.get(url)
        assert policy_of(answer) == POLICY, name
        assert answer["X-Frame-Options"] == "DENY", name
        assert "no-store" in answer["Cache-Control"], name


def test_error_pages_of_all_kinds_are_ours_and_have_the_same_headers(client, settings):
    client.force_login(make_staff())
    forbidden = client.get(JOBS)
    no_token = Client(enforce_csrf_checks=True).post(LOGIN, WRONG)
    unreadable = client.get("/admin/", headers={"host": "evil.example"})
    for answer, status, words in (
        (forbidden, 403, "You may not do this"),
        (no_token, 403, "This form is too old"),
        (unreadable, 400, "This request cannot be read"),
    ):
        assert answer.status_code == status
        assert words in answer.content.decode()
        assert "no-store" in answer["Cache-Control"]
        assert policy_of(answer) == POLICY


def test_a_failure_of_ours_is_a_page_that_tells_nothing(client, root, monkeypatch):
    from config.admin_site import JobAdminSite

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("s3cr3t of the server")

    monkeypatch.setattr(JobAdminSite, "each_context", broken)
    client.raise_request_exception = False
    answer = client.get(JOBS)
    assert answer.status_code == 500
    assert "Something went wrong on our side" in answer.content.decode()
    assert "s3cr3t" not in answer.content.decode()
    assert "no-store" in answer["Cache-Control"]
    assert policy_of(answer) == POLICY


def test_28_no_page_has_a_script_a_style_or_a_handler_in_it(client, root):
    """scenario 28 of admin.md, without a browser: what a strict policy would refuse is not there."""
    for name, url in pages().items():
        answer = client.get(url)
        if not answer["Content-Type"].startswith("text/html"):
            continue
        text = answer.content.decode()
        assert not re.search(r"<style|<script(?![^>]*\ssrc=)|\sstyle=|\son[a-z]+=\"|javascript:", text), name


def test_the_protocol_and_the_api_keep_their_own_headers_and_speak_english(client, root):
    answer = client.get("/api/jobs/no-uuid/", headers={"accept-language": "zh-hans"})
    assert answer.status_code == 404
    assert answer.json()
    assert "Content-Language" not in answer
    assert re.fullmatch(r"[\x00-\x7f]*", answer.content.decode())
    assert "Content-Security-Policy" not in client.get("/internal/runtime/poll")


def test_the_language_of_the_browser_and_then_the_persons_own_choice(client, root):
    assert 'lang="en"' in client.get("/admin/").content.decode()
    assert 'lang="zh-hans"' in client.get("/admin/", headers={"accept-language": "zh-CN,zh;q=0.9"}).content.decode()
    chosen = client.post("/admin/language/", {"language": "zh-hans", "next": JOBS})
    assert (chosen.status_code, chosen.url) == (302, JOBS)
    cookie = chosen.cookies[settings.LANGUAGE_COOKIE_NAME]
    assert (cookie.value, cookie["max-age"], cookie["httponly"], cookie["samesite"]) == ("zh-hans", 365 * 24 * 3600, True, "Lax")
    assert 'lang="zh-hans"' in client.get(JOBS).content.decode()
    # And nowhere else.
    assert client.post("/admin/language/", {"language": "en", "next": "https://evil.example/"}).url == "/"


def test_the_bar_shows_what_a_person_may_see_and_marks_where_they_are(client):
    client.force_login(make_staff("view_airuntimejob", "view_aijobevent"))
    text = client.get(JOBS).content.decode()
    bar = text.split('<nav id="sections"')[1].split("</nav>")[0]
    assert re.findall(r">([^<]+)</a>", bar) == ["Dashboard", "Jobs", "Events"]
    assert re.findall(r'href="([^"]+)" aria-current="page"', bar) == [JOBS]


def login(client, data, address="192.0.2.1"):
    return client.post(LOGIN, data, REMOTE_ADDR=address)


def test_after_five_failures_even_the_right_password_has_to_wait_and_is_told_how_long(client):
    make_staff(username="ann")
    for _ in range(login_throttle.PER_NAME_AND_ADDRESS):
        assert login(client, WRONG).status_code == 200
    refused = login(client, RIGHT)
    assert refused.status_code == 429
    assert "Too many failed log-ins. Try again in 15 minutes." in refused.content.decode()
    assert "_auth_user_id" not in client.session
    # In another letter case it is the same name; from another address, and for another name, it is not.
    assert login(client, {**RIGHT, "username": "ANN "}).status_code == 429
    assert login(client, {**RIGHT, "username": "bob"}).status_code == 200
    assert login(Client(), RIGHT, "192.0.2.2").status_code == 302


def test_the_wait_ends_and_is_not_made_longer_by_trying(client):
    make_staff(username="ann")
    for _ in range(2 * login_throttle.PER_NAME_AND_ADDRESS):
        login(client, WRONG)
    LoginTries.objects.update(until=Now() - timedelta(seconds=1))
    assert login(client, RIGHT).status_code == 302


def test_a_success_forgets_the_persons_own_mistakes(client):
    make_staff(username="ann")
    for _ in range(3):
        for _ in range(login_throttle.PER_NAME_AND_ADDRESS - 1):
            login(client, WRONG)
        assert login(client, RIGHT).status_code == 302
    assert not LoginTries.objects.filter(tries__gt=3 * (login_throttle.PER_NAME_AND_ADDRESS - 1)).exists()


def test_a_name_is_guarded_from_many_addresses_and_an_address_from_many_names(client):
    for number in range(login_throttle.PER_NAME):
        assert login_throttle.begin("ann", f"192.0.2.{number}") == 0
    assert login_throttle.begin("ann", "198.51.100.1") > 0
    for number in range(login_throttle.PER_ADDRESS):
        assert login_throttle.begin(f"user{number}", "203.0.113.1") == 0
    assert login_throttle.begin("somebody else", "203.0.113.1") > 0
    assert login_throttle.begin("somebody else", "203.0.113.2") == 0


def test_whoever_is_locked_out_at_one_address_does_not_use_up_the_names_tries_elsewhere():
    for _ in range(2 * login_throttle.PER_NAME):
        login_throttle.begin("ann", "192.0.2.1")
    assert login_throttle.begin("ann", "192.0.2.2") == 0


def test_behind_our_proxy_the_address_is_the_one_that_it_saw(client, settings):
    settings.BEHIND_TLS_PROXY = True
    for number in range(login_throttle.PER_NAME_AND_ADDRESS + 1):
        # What a client writes there itself stands in front and counts nothing.
        answer = client.post(LOGIN, WRONG, REMOTE_ADDR="10.0.0.1", headers={"x-forwarded-for": f"192.0.2.{number}, 198.51.100.7"})
    assert answer.status_code == 429
    settings.BEHIND_TLS_PROXY = False
    assert client.post(LOGIN, WRONG, REMOTE_ADDR="10.0.0.1", headers={"x-forwarded-for": "198.51.100.7"}).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_a_burst_of_guesses_at_once_gets_no_more_tries_than_a_patient_guesser():
    def guess(_: int) -> bool:
        try:
            return login_throttle.begin("ann", "192.0.2.1") == 0
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        admitted = list(pool.map(guess, range(40)))
    assert sum(admitted) == login_throttle.PER_NAME_AND_ADDRESS


def test_what_was_typed_is_stored_nowhere_and_what_is_over_is_deleted(client):
    login(client, {"username": "hunter2-the-password", "password": "x"})
    with connection.cursor() as cursor:
        cursor.execute("SELECT string_agg(t::text, ' ') FROM login_tries t")
        assert "hunter2" not in cursor.fetchone()[0]
    LoginTries.objects.update(until=Now() - timedelta(seconds=1))
    login(client, {"username": "other", "password": "x"}, "192.0.2.9")
    assert LoginTries.objects.count() == 3
