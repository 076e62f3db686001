from runtime_jobs.models.attempt import AiJobAttempt
from runtime_jobs.models.credential import AiModelCredential
from runtime_jobs.models.event import AiEventDelivery, AiJobEvent
from runtime_jobs.models.figures import HourlyFigures, RolledUpHour
from runtime_jobs.models.gate import ClaimGate
from runtime_jobs.models.instance import RuntimeInstance
from runtime_jobs.models.job import AiRuntimeJob
from runtime_jobs.models.login import LoginTries
from runtime_jobs.models.result import AiRuntimeResult
from runtime_jobs.models.service_token import RuntimeServiceToken
from runtime_jobs.models.snapshot import AiJobSnapshot
from runtime_jobs.models.staff_event import AiStaffEvent
from runtime_jobs.models.usage import AiUsageLog

__all__ = [
    "AiEventDelivery",
    "AiJobAttempt",
    "AiJobEvent",
    "AiJobSnapshot",
    "AiModelCredential",
    "AiRuntimeJob",
    "AiRuntimeResult",
    "AiStaffEvent",
    "AiUsageLog",
    "ClaimGate",
    "HourlyFigures",
    "LoginTries",
    "RolledUpHour",
    "RuntimeInstance",
    "RuntimeServiceToken",
]
