"""What happened to jobs, what staff did, and what is on its way to handlers."""

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from runtime_jobs.admin import words
from runtime_jobs.admin.filters import CreatedFilter, FormFilter
from runtime_jobs.admin.readonly import ReadOnlyAdmin
from runtime_jobs.admin.verbs import Verb, VerbAdmin
from runtime_jobs.models import AiEventDelivery, AiJobEvent, AiStaffEvent
from runtime_jobs.services.deliveries import retry_parked
from runtime_jobs.services.events import Actor


@admin.register(AiJobEvent)
class EventAdmin(ReadOnlyAdmin):
    list_display = ("id", "job", "seq", "name", "attempt_no", "actor_name", "created_at")
    list_select_related = ("job",)
    list_filter = (CreatedFilter,)
    search_fields = ("id",)
    search_help_text = gettext_lazy("an event's or a job's id")
    search_uuids = ("pk", "job_id")


@admin.register(AiStaffEvent)
class StaffEventAdmin(ReadOnlyAdmin):
    """What staff did that is no step of one job."""

    list_display = ("created_at", "name", "actor_name", "subject_type", "subject_id", "reason", "request")
    list_filter = (CreatedFilter,)
    search_fields = ("id",)
    search_help_text = gettext_lazy("the whole name of who did it")
    search_exact = ("actor_name",)

    @admin.display(description=gettext_lazy("request"))
    def request(self, event: AiStaffEvent) -> str:
        return str(event.data.get("request_id", words.NOTHING))


def _retry(delivery_id: UUID, actor: Actor, reason: str) -> str:
    return "" if retry_parked(delivery_id, actor=actor, reason=reason) else _("it is not parked (any more)")


RETRY = Verb(
    name="retry",
    permission="runtime_jobs.retry_delivery",
    title=gettext_lazy("Try parked deliveries again"),
    explanation=gettext_lazy("Each event is handed to its handler again, with all its tries, from now on."),
    button=gettext_lazy("Try again"),
    action=gettext_lazy("Try selected parked deliveries again"),
    run=_retry,
    offered=lambda delivery: delivery.parked_at is not None,
)


class ParkedFilter(FormFilter):
    title = gettext_lazy("state")
    parameter_name = "state"
    parameters = ("state",)

    def controls(self) -> Any:
        states = [("", _("All")), ("parked", _("parked")), ("waiting", _("waiting"))]
        yield self.choice(states)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        # Each condition is that of a partial index.
        match self.given_value():
            case "parked":
                return queryset.filter(parked_at__isnull=False)
            case "waiting":
                return queryset.filter(delivered_at=None, parked_at=None)
        return queryset


@admin.register(AiEventDelivery)
class DeliveryAdmin(VerbAdmin):
    verbs = (RETRY,)
    list_display = ("id", "handler", "event_name", "job_id", "tries", "next_try_at", "delivered_at", "parked_at")
    list_select_related = ("event",)
    list_filter = (ParkedFilter,)
    search_fields = ("id",)
    search_help_text = gettext_lazy("a delivery's or an event's id")
    search_uuids = ("pk", "event_id")
    fields = (
        "id", "handler", "event", "job_id", "seq", "tries", "next_try_at", "delivered_at", "parked_at", "last_error",
    )  # fmt: skip
    readonly_fields = ("id", "job_id", "seq")

    @admin.display(description=gettext_lazy("event"))
    def event_name(self, delivery: AiEventDelivery) -> str:
        return delivery.event.name
