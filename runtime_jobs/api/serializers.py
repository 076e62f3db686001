"""What people outside see of a job, field by field. A column that is not declared here does not leave the house."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from rest_framework import serializers

from runtime_jobs import queries, registry
from runtime_jobs.api.errors import ERROR_CODES
from runtime_jobs.errors import ErrorCode
from runtime_jobs.models import AiRuntimeJob, AiRuntimeResult
from runtime_jobs.states import JobStatus, Lane

SENSITIVE = "runtime_jobs.view_sensitive"


def _members(kind: type[StrEnum]) -> list[tuple[str, str]]:
    """Value and name: by these ENUM_NAME_OVERRIDES of the settings finds the set again and gives it its name in the schema."""
    return [(member.value, member.name) for member in kind]


class _Text(serializers.CharField):
    """A text that may be missing: null, where the table has ''."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_null=True, **kwargs)

    def get_attribute(self, instance: Any) -> Any:
        return super().get_attribute(instance) or None


class _Choice(serializers.ChoiceField):
    """The same for one of a set."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_null=True, **kwargs)

    def get_attribute(self, instance: Any) -> Any:
        return super().get_attribute(instance) or None


class _NextAttempt(serializers.DateTimeField):
    """`available_at` says something only while the job waits for a retry."""

    def get_attribute(self, instance: AiRuntimeJob) -> datetime | None:
        return instance.available_at if instance.status == JobStatus.RETRYING else None


class JobSerializer(serializers.Serializer[AiRuntimeJob]):
    id = serializers.UUIDField()
    jobType = serializers.CharField(source="job_type")
    lane = serializers.ChoiceField(choices=_members(Lane))
    status = serializers.ChoiceField(choices=_members(JobStatus))
    targetType = serializers.CharField(source="target_type")
    targetId = serializers.CharField(source="target_id")
    priority = serializers.IntegerField(help_text="0 to 9; higher is sooner.")
    attemptNo = serializers.IntegerField(source="attempt_no", help_text="How often it has really been executed.")
    retryCount = serializers.IntegerField(source="retry_count")
    maxRetryCount = serializers.IntegerField(source="max_retry_count")
    errorCode = _Choice(source="error_code", choices=_members(ErrorCode), help_text="Of the last attempt that failed.")
    publicError = _Text(source="error_message", help_text="The sentence that belongs to `errorCode`.")
    progress = serializers.IntegerField(allow_null=True, help_text="Percent, as the worker reports it.")
    progressMessage = _Text(source="progress_message")
    nextAttemptAt = _NextAttempt(allow_null=True, help_text="While the status is `retrying`: not before this time.")
    cancelRequestedAt = serializers.DateTimeField(source="cancel_requested_at", allow_null=True)
    retriedFromJob = serializers.UUIDField(source="retried_from_job_id", allow_null=True, help_text="The job that this one is a rerun of.")
    createdAt = serializers.DateTimeField(source="created_at")
    startedAt = serializers.DateTimeField(source="started_at", allow_null=True)
    finishedAt = serializers.DateTimeField(source="finished_at", allow_null=True)
    updatedAt = serializers.DateTimeField(source="updated_at")


class ResultSerializer(serializers.Serializer[AiRuntimeResult]):
    id = serializers.UUIDField()
    attemptNo = serializers.IntegerField(source="attempt_no")
    schemaVersion = serializers.CharField(source="schema_version")
    validatedOutput = serializers.JSONField(source="validated_output", help_text="Fits the output schema of the job's type.")
    createdAt = serializers.DateTimeField(source="created_at")

    def get_attribute(self, instance: Any) -> AiRuntimeResult | None:
        """Of a job: its success, as the viewer (in the context) may see it. Success and result are committed together."""
        result = queries.succeeded_result(instance.pk) if instance.status == JobStatus.SUCCEEDED else None
        if result is not None:
            result.validated_output = _shown(result.validated_output, instance, self.context["viewer"])
        return result


class JobDetailSerializer(JobSerializer):
    result = ResultSerializer(allow_null=True, help_text="Of a job that has succeeded.")


class CancelSerializer(serializers.Serializer[None]):
    reason = serializers.CharField(max_length=500, allow_blank=True, required=False, help_text="Kept with the job for staff.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        unknown = set(self.initial_data) - set(self.fields)
        if unknown:
            raise serializers.ValidationError({name[:100]: ["There is no such member. Known: reason."] for name in sorted(unknown)})
        return attrs


class ErrorSerializer(serializers.Serializer[None]):
    errorCode = serializers.ChoiceField(choices=ERROR_CODES)
    message = serializers.CharField(help_text="For people.")
    details = serializers.DictField(required=False, help_text="What is wrong by the name of the parameter or member, or the job's status.")


def _shown(output: Any, job: AiRuntimeJob, viewer: Any) -> Any:
    """The owner's own is shown whole. Staff see others' as in the admin: as its definition redacts it, in clear with the permission."""
    return output if job.user_id == viewer.pk else registry.visible(job.job_type, output, clear=viewer.has_perm(SENSITIVE))
