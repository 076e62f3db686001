"""Who works: engine processes, runtimes and web servers, as they were last seen."""

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from runtime_jobs.admin import words
from runtime_jobs.admin.verbs import Verb, VerbAdmin
from runtime_jobs.models import RuntimeInstance
from runtime_jobs.services import workers
from runtime_jobs.services.events import Actor


def _drain(worker_id: UUID, actor: Actor, reason: str) -> str:
    name = RuntimeInstance.objects.filter(pk=worker_id).values_list("name", flat=True).first()
    drained = name is not None and workers.drain(name, actor=actor, reason=reason)
    return "" if drained else _("it drains already, is a web server, or is gone")


DRAIN = Verb(
    name="drain",
    permission="runtime_jobs.drain_worker",
    title=gettext_lazy("Drain workers"),
    explanation=gettext_lazy(
        "Each worker takes no more jobs and ends what it holds. A process of the engine is then replaced by a fresh one of its cluster; a"
        " runtime gets no jobs until it comes back under another name."
    ),
    button=gettext_lazy("Drain"),
    action=gettext_lazy("Drain selected workers"),
    run=_drain,
    offered=lambda worker: not worker.draining and worker.kind != RuntimeInstance.Kind.WEB,
    destructive=True,
)


@admin.register(RuntimeInstance)
class WorkerAdmin(VerbAdmin):
    verbs = (DRAIN,)
    list_display = ("name", "kind", "lane", "version", "is_alive", "draining", "seen", "up")
    search_fields = ("name",)
    search_help_text = gettext_lazy("a worker's whole name")
    search_exact = ("name",)
    fields = readonly_fields = ("name", "kind", "lane", "version", "draining", "started_at", "last_seen_at", "job_types", "labels")

    @admin.display(description=gettext_lazy("alive"), boolean=True)
    def is_alive(self, worker: Any) -> bool:
        return workers.is_alive(worker)

    @admin.display(description=gettext_lazy("last seen"))
    def seen(self, worker: RuntimeInstance) -> str:
        return words.since(worker.last_seen_at)

    @admin.display(description=gettext_lazy("seen without a gap for"))
    def up(self, worker: RuntimeInstance) -> str:
        return words.between(worker.started_at, worker.last_seen_at)
