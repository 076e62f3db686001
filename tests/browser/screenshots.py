"""`make screenshots`: the dashboard, the list and a job's page, light, dark and on a phone, with something to show on them.

No test (its name is not one's), but it needs all that the browser tests need.
"""

import re
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from runtime_jobs.models import ClaimGate
from runtime_jobs.models.base import new_id
from runtime_jobs.services import figures, gates, workers
from runtime_jobs.services.events import Actor
from runtime_jobs.services.jobs import rerun_job
from runtime_jobs.synthetic.history import make_history
from tests.browser.conftest import DESK, JOBS, PHONE
from tests.support.processes import ROOT

FOLDER = ROOT / ".data" / "screenshots"
TEXT = (
    "Coffee reached Vienna in the seventeenth century. The first coffee house of the city opened in 1685.\n\n"
    "By 1819 the city counted 150 coffee houses, and most of them had billiard tables."
)
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": DESK, "color_scheme": "light"},
    "dark": {"viewport": DESK, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "light", "is_mobile": True, "has_touch": True, "device_scale_factor": 2},
    "chinese": {"viewport": DESK, "color_scheme": "light", "language": "zh-CN"},
}


def test_take_pictures(site, person):
    # Two errors that are retried, then a result that refers to nothing, and a rerun by hand that succeeds.
    troubled = "[[simulate: status=503 times=1]] [[simulate: status=429 retry-after=1 times=1]] [[simulate: bad_reference times=1]]"
    job = site.has_status(site.create(f"{TEXT} {troubled}"), "failed", seconds=60)
    rerun = rerun_job(job.pk, actor=Actor.of(site.root), reason="the prompt was corrected").job
    site.has_status(rerun, "succeeded")
    site.engine.end()
    fill()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, look in LOOKS.items():
        me = person(**look)
        me.log_in()
        for what, path in {"dashboard": "/admin/", "jobs": JOBS, "job": f"{JOBS}{job.pk}/change/"}.items():
            me.go(path)
            expect(me.page.locator("h1").first).to_have_text(re.compile("."))
            me.page.evaluate("document.fonts.ready")
            me.page.screenshot(path=FOLDER / f"{what}-{name}.png")
            me.page.screenshot(path=FOLDER / f"{what}-{name}-whole.png", full_page=True)
    print(f"\n{len(list(Path(FOLDER).glob('*.png')))} pictures are in {FOLDER.relative_to(ROOT)}")


def fill() -> None:
    """A month that grew busier, with something waiting, running and held up now."""
    for jobs, days in ((3_000, 30), (2_200, 9), (1_200, 2.5), (700, 0.6), (160, 0.08)):
        make_history(jobs=jobs, days=days)
    for number in range(3):
        workers.seen(f"interactive@web-{number}", kind=workers.Kind.ENGINE, lane="interactive", version="2026.11", job_types=[])
    for name in ("background@batch-1", "background@batch-2"):
        workers.seen(name, kind=workers.Kind.ENGINE, lane="background", version="2026.11", job_types=[])
    workers.seen("extractor-7", kind=workers.Kind.RUNTIME, lane="runtime", version="0.9", job_types=[])
    ClaimGate.objects.create(
        id=new_id(), kind="breaker", key="second/second-2", reason="the last 5 calls failed, the latest with provider_unavailable"
    )
    gates.pause(ClaimGate.Kind.JOB_TYPE, "synthetic.extract_facts_background", actor=Actor("", "ann"), reason="until the new prompt is out")
    while figures.roll_up(every_seconds=5):
        pass
