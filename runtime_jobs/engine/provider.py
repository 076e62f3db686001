"""The gateway as one attempt gets it: every call leaves a usage row, and stops when the attempt's signal is pulled."""

from dataclasses import dataclass, field
from uuid import UUID

from django.conf import settings

from runtime_jobs import gateway
from runtime_jobs.abort import Aborted, AbortReason, AbortSignal
from runtime_jobs.engine.connections import database
from runtime_jobs.errors import AttemptError, ErrorCode
from runtime_jobs.gateway import AddressPolicy, AiGatewayService
from runtime_jobs.model_call import CallReport, ModelAnswer, ModelRequest, ProviderTarget
from runtime_jobs.models import AiUsageLog
from runtime_jobs.registry import JobInput
from runtime_jobs.services import leases, usage
from runtime_jobs.services.claims import Claim
from runtime_jobs.states import JobStatus

_Outcome = AiUsageLog.Outcome


def make_service() -> AiGatewayService:
    """The process's gateway. A user's own address must be public; the platform's is set by an administrator, who may mean a private one."""
    loopback = settings.ALLOW_LOOPBACK_PROVIDERS
    return AiGatewayService(
        user_addresses=AddressPolicy(allow_loopback_http=loopback),
        platform_addresses=AddressPolicy(allow_loopback_http=loopback, allow_private=True),
    )


@dataclass
class AttemptGateway:
    """Implements BoundGateway for one attempt."""

    service: AiGatewayService
    claim: Claim
    job: JobInput
    target: ProviderTarget
    signal: AbortSignal
    answers: list[ModelAnswer] = field(default_factory=list)
    _calls: int = 0

    def complete(self, request: ModelRequest) -> ModelAnswer:
        """One provider call, one HTTP request, one usage row. Raises AttemptError or Aborted."""
        self._calls += 1
        with database():
            self._still_wanted()
            call_id = usage.open_call(
                job_id=self.job.job_id,
                user_id=self.job.user_id,
                attempt_no=self.claim.attempt_no,
                call_no=self._calls,
                target=self.target,
            )
        report = CallReport()
        try:
            answer = gateway.run(
                self.service.complete(self.target, request, report, call_id=call_id, timeout_seconds=self.signal.remaining_seconds()),
                self.signal,
            )
        except AttemptError as error:
            self._close(call_id, report, _Outcome.FAILED, str(error.code), error.retryable)
            raise
        except Aborted as aborted:
            timed_out = aborted.reason == AbortReason.TIMEOUT
            self._close(call_id, report, _Outcome.ABORTED, ErrorCode.PROVIDER_TIMEOUT if timed_out else ErrorCode.CANCELLED)
            raise
        except BaseException:
            self._close(call_id, report, _Outcome.FAILED, ErrorCode.INTERNAL_ERROR)
            raise
        self._close(call_id, report, _Outcome.SUCCEEDED)
        return answer

    def _still_wanted(self) -> None:
        """The last look before money is spent: exact, where the signal may lag behind by a notification."""
        self.signal.check()
        status = leases.held_status(self.claim)
        if status == JobStatus.CANCEL_REQUESTED:
            self.signal.abort(AbortReason.CANCELLED)
        elif status != JobStatus.RUNNING:
            self.signal.abort(AbortReason.LEASE_LOST)
        self.signal.check()

    @staticmethod
    def _close(call_id: UUID, report: CallReport, outcome: AiUsageLog.Outcome, code: str = "", retryable: bool | None = None) -> None:
        with database():
            usage.close_call(call_id, report, outcome, error_code=code, retryable=retryable)
