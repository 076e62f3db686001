"""A process with production's settings that opens pages: `python -m tests.benchmarks.admin_pages fill JOBS`, or `time REQUESTS`.

The last line of the output is JSON: of `time` each page's median in milliseconds, from the request's entry into Django to the whole answer;
network, browser and log-in are left out. What open pages share for some seconds (counts) is made anew for every request.
"""

import json
import statistics
import sys
import time
from typing import Any

import django
from django.core.management import call_command

_WARM_UP = 3
LIST = "/admin/runtime_jobs/airuntimejob/"


def fill(jobs: int) -> dict[str, float]:
    from django.contrib.auth import get_user_model

    from runtime_jobs.synthetic.history import make_history

    call_command("migrate", verbosity=0)
    call_command("collectstatic", interactive=False, verbosity=0)
    get_user_model().objects.create_superuser("bench")
    make_history(jobs=jobs)
    call_command("roll_up_figures", verbosity=0)
    return {}


def timed(requests: int) -> dict[str, float]:
    from django.contrib.auth import get_user_model
    from django.core.cache import cache
    from django.test import Client

    client = Client()
    client.force_login(get_user_model().objects.get(username="bench"))
    found = {}
    for name, url in _pages().items():
        times = []
        for number in range(_WARM_UP + requests):
            cache.clear()
            start = time.perf_counter()
            answer: Any = client.get(url, secure=True)
            length = len(answer.content)
            seconds = time.perf_counter() - start
            if answer.status_code != 200 or not length:
                raise RuntimeError(f"{url} answers {answer.status_code}")
            if number >= _WARM_UP:
                times.append(seconds)
        found[name] = statistics.median(times) * 1_000
    return found


def _pages() -> dict[str, str]:
    from runtime_jobs.models import AiRuntimeJob

    jobs = AiRuntimeJob.objects.order_by("-id")
    done = jobs.filter(status="succeeded")[0]
    return {
        "dashboard": "/admin/",
        "list": LIST,
        "list, page 20": f"{LIST}?p=20",
        "list, failed": f"{LIST}?status__exact=failed",
        "list, rare lane": f"{LIST}?lane__exact=runtime",
        "list, an error": f"{LIST}?error_code=provider_timeout",
        "list, a provider": f"{LIST}?provider=second",
        "list, a user": f"{LIST}?user=many-001",
        "list, last 24 hours": f"{LIST}?created=24h",
        "list, has been rerun": f"{LIST}?rerun=yes",
        "search, id": f"{LIST}?q={done.pk}",
        "search, target": f"{LIST}?q=document+{done.target_id}",
        "job page": f"{LIST}{done.pk}/change/",
    }


if __name__ == "__main__":
    django.setup()
    action, count = sys.argv[1], int(sys.argv[2])
    print(json.dumps({"fill": fill, "time": timed}[action](count)))
