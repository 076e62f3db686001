"""The user API: own jobs, their results, cancel. Staff with the permission see everybody's."""

from typing import Any, NoReturn
from uuid import UUID

from django.db.models import QuerySet
from django_filters.rest_framework import DjangoFilterBackend  # type: ignore[import-untyped]
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiJsonRenderer2
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.generics import ListAPIView
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from runtime_jobs import queries
from runtime_jobs.api.base import ApiView, SessionLogin
from runtime_jobs.api.filters import JobFilter
from runtime_jobs.api.openapi import CSRF_HEADER, failures
from runtime_jobs.api.pagination import NewestFirst
from runtime_jobs.api.serializers import CancelSerializer, JobDetailSerializer, JobSerializer
from runtime_jobs.errors import JobNotFound
from runtime_jobs.models import AiRuntimeJob
from runtime_jobs.services.events import Actor
from runtime_jobs.services.jobs import cancel_job

VIEW = "runtime_jobs.view_airuntimejob"
CANCEL = "runtime_jobs.cancel_job"


def _seen_by(user: Any) -> QuerySet[AiRuntimeJob]:
    jobs = queries.public_jobs()
    return jobs if user.is_staff and user.has_perm(VIEW) else jobs.filter(user_id=user.pk)


def _find(user: Any, job_id: UUID) -> AiRuntimeJob:
    """Raises JobNotFound, in the same words whether the job is another's or nobody's."""
    job = _seen_by(user).filter(pk=job_id).first()
    if job is None:
        raise JobNotFound(f"There is no job {job_id}.")
    return job


class JobList(ApiView, ListAPIView[AiRuntimeJob]):
    queryset = AiRuntimeJob.objects.none()  # tells the schema the model; requests get theirs below
    serializer_class = JobSerializer
    filter_backends = [DjangoFilterBackend]
    filterset_class = JobFilter
    pagination_class = NewestFirst
    query_parameters = frozenset(JobFilter.base_filters) | {"cursor", "pageSize"}
    repeatable = frozenset({"status"})

    def get_queryset(self) -> QuerySet[AiRuntimeJob]:
        return _seen_by(self.request.user)

    @extend_schema(
        operation_id="listJobs",
        summary="Jobs, newest first",
        description="Own jobs; staff with the permission see everybody's. `status` may be given several times, for any of several. Query "
        "parameters that are not listed are refused.",
        responses={200: JobSerializer(many=True), **failures(400, 401, 406)},
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self.list(request, *args, **kwargs)


class JobDetail(ApiView):
    @extend_schema(
        operation_id="getJob",
        summary="A job and its result",
        description="Staff who may not see sensitive text get the output of somebody else's job redacted.",
        responses={200: JobDetailSerializer, **failures(400, 401, 404, 406)},
    )
    def get(self, request: Request, id: UUID) -> Response:
        return _detail(request, _find(request.user, id))


class JobCancel(ApiView):
    @extend_schema(
        operation_id="cancelJob",
        summary="Cancel a job",
        description="A waiting job is cancelled at once. A running one becomes `cancel_requested` and ends as soon as its worker sees the "
        "wish. Asking again changes nothing. A job that has ended is a conflict whose details name its status.",
        parameters=[CSRF_HEADER],
        request=CancelSerializer,
        responses={200: JobDetailSerializer, **failures(400, 401, 403, 404, 406, 409, 413, 415)},
    )
    def post(self, request: Request, id: UUID) -> Response:
        job = _find(request.user, id)
        if job.user_id != request.user.pk and not request.user.has_perm(CANCEL):
            raise PermissionDenied(f"Cancelling a job of somebody else needs the permission {CANCEL}.")
        body = CancelSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reason = body.validated_data.get("reason", "")
        return _detail(request, cancel_job(id, actor=Actor.of(request.user), reason=reason))


class Schema(ApiView, SpectacularAPIView):
    """This API as OpenAPI. JSON only, so that its errors are JSON too."""

    authentication_classes = [SessionLogin]
    permission_classes = [IsAuthenticated]
    renderer_classes = [OpenApiJsonRenderer2, OpenApiJsonRenderer]


class Nothing(ApiView):
    """Whatever else is asked for under /api/, so that this too is answered in JSON."""

    schema = None

    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotFound("There is nothing here. Paths of this API end with a slash.")


def _detail(request: Request, job: AiRuntimeJob) -> Response:
    return Response(JobDetailSerializer(job, context={"viewer": request.user}).data)
