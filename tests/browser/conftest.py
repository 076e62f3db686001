"""Staff at work in a real browser: Debian's Chromium against a real web server, an engine and the provider simulator."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.core.management import call_command
from django.db import connections
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.services.jobs import create_job
from tests.factories import CredentialFactory, UserFactory, payload
from tests.runtime_protocol.web import WebServer
from tests.support.processes import Engine, wait_for, wait_until_alone
from tests.support.provider_simulator import ProviderSimulator

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip
AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
PASSWORD = "pass word 1"
DESK, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
JOBS = "/admin/runtime_jobs/airuntimejob/"
# A policy violation is no exception: it is told to whoever listens.
_TELL_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
    console.error(`policy violation: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""


@pytest.fixture(scope="module")
def chromium(django_db_setup: None) -> Iterator[Browser]:
    if not os.path.exists(CHROMIUM):
        if os.environ.get("REQUIRE_ALL"):
            pytest.fail("Chromium is needed here: apt-get install -y chromium")
        pytest.skip("NOT RUN: the browser tests need Chromium (apt-get install -y chromium)")
    # Playwright's synchronous interface keeps an event loop in this thread. Django takes that for asynchronous code, and has other
    # connections in it than outside: none must be left open on either side.
    connections.close_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
            yield browser
            browser.close()


@dataclass
class Site:
    """A web server, an engine of each kind of job that is needed, and a provider, on the test's database."""

    url: str
    root: Any
    provider: ProviderSimulator
    engine: Engine

    def create(self, text: str, job_type: str = "synthetic.extract_facts", **more: Any) -> AiRuntimeJob:
        """A job on this text, in which the provider finds what it is to do."""
        return create_job(user=self.root, job_type=job_type, payload=payload(text), target_type="document", target_id="1", **more)

    def has_status(self, job: AiRuntimeJob, *statuses: str, seconds: float = 30) -> AiRuntimeJob:
        wait_for(lambda: AiRuntimeJob.objects.filter(pk=job.pk, status__in=statuses).exists(), seconds, f"{job} is {statuses}")
        return AiRuntimeJob.objects.get(pk=job.pk)


@pytest.fixture(scope="module")
def site(chromium: Browser, django_db_blocker: Any) -> Iterator[Site]:
    with django_db_blocker.unblock(), ProviderSimulator() as simulator:
        root = person_with_password("root", is_superuser=True, is_staff=True)
        CredentialFactory(name="simulator", base_url=simulator.url)
        web = engine = None
        try:
            web, engine = WebServer(threads=8), Engine()
            yield Site(f"http://127.0.0.1:{web.port}", root, simulator, engine)
        finally:
            if engine is not None:
                engine.end()
            if web is not None:
                web.end()
            call_command("flush", verbosity=0, interactive=False)
            wait_until_alone()
            connections.close_all()


def person_with_password(name: str, **more: Any) -> Any:
    """Somebody who can log in: the web server hashes as in production, and does not know the tests' own quick hash."""
    user: Any = UserFactory(username=name, **more)
    hasher = PBKDF2PasswordHasher()
    user.password = hasher.encode(PASSWORD, hasher.salt(), iterations=1_000)
    user.save(update_fields=["password"])
    return user


@dataclass
class Person:
    """Somebody with a browser of their own. Whatever the console complains of stops the test at its end."""

    site: Site
    context: BrowserContext
    page: Page
    complaints: list[str] = field(default_factory=list)

    def go(self, path: str) -> None:
        self.page.goto(f"{self.site.url}{path}")

    def log_in(self, name: str = "root") -> None:
        self.go("/admin/")
        self.page.fill("#id_username", name)
        self.page.fill("#id_password", PASSWORD)
        self.page.press("#id_password", "Enter")
        self.page.wait_for_selector("#sections")
        # Scripts listen to keys from then on.
        self.page.wait_for_load_state("load")

    def watch(self, page: Page) -> None:
        page.on("console", lambda message: self.complaints.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("requestfailed", lambda request: self._failed(request))

    def _failed(self, request: Any) -> None:
        # A refresh that a click on a link overtakes is cancelled; that is no failure.
        if "ERR_ABORTED" not in (request.failure or ""):
            self.complaints.append(f"{request.url}: {request.failure}")

    def violations(self) -> list[str]:
        """What axe finds wrong on this page, WCAG 2.2 AA and good practice."""
        self.page.evaluate(AXE)
        # Without its preloading, which writes a style into the page that our policy refuses.
        rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
        # Django's own box of two lists names its hints in a way that axe does not like (6.0 too).
        found = self.page.evaluate(
            "(tags) => axe.run({exclude: ['.selector .help-tooltip']}, {preload: false, runOnly: {type: 'tag', values: tags}})", rules
        )
        return [
            f"{one['id']}: {node['target']} {node.get('failureSummary', '')}" for one in found["violations"] for node in one["nodes"][:3]
        ]


@pytest.fixture
def person(site: Site, chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Person]]:
    """Makes people with browsers; they have nothing to complain of."""
    made: list[Person] = []

    def make(*, viewport: Any = DESK, color_scheme: Any = "light", language: str = "en-US", **more: Any) -> Person:
        context = chromium.new_context(viewport=viewport, color_scheme=color_scheme, locale=language, **more)
        context.set_default_timeout(15_000)
        context.add_init_script(_TELL_VIOLATIONS)
        one = Person(site, context, context.new_page())
        one.watch(one.page)
        made.append(one)
        return one

    yield make
    for one in made:
        one.context.close()
    assert [complaint for one in made for complaint in one.complaints] == []
