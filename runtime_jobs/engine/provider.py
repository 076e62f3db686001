"""The gateway as one attempt gets it: every call leaves a usage row, and stops when the attempt's signal is pulled."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from runtime_jobs import gateway
from runtime_jobs.abort import Aborted, AbortReason, AbortSignal
from runtime_jobs.engine.connections import persist
from runtime_jobs.engine.writes import Writes
from runtime_jobs.errors import AttemptError, ErrorCode
from runtime_jobs.gateway import AiGatewayService
from runtime_jobs.model_call import CallReport, ModelAnswer, ModelRequest, ProviderTarget
from runtime_jobs.models.base import new_id
from runtime_jobs.services import breakers, leases, prices, usage
from runtime_jobs.services.claims import Claim
from runtime_jobs.services.usage import NO_CALL, ClosedCall, OpenCall, Outcome
from runtime_jobs.states import JobStatus


@dataclass
class AttemptGateway:
    """Implements BoundGateway for one attempt.

    A call that is over is closed in the usage log together with what comes next: the next call, or the end of the attempt (`last_call`).
    """

    service: AiGatewayService
    claim: Claim
    target: ProviderTarget
    signal: AbortSignal
    writes: Writes
    last_call: ClosedCall = NO_CALL
    _calls: int = 0

    def complete(self, request: ModelRequest) -> ModelAnswer:
        """One provider call, one HTTP request, one usage row. Raises AttemptError or Aborted."""
        self.signal.check()
        if self.last_call is not NO_CALL:
            persist(self.close_last_call)
        self._calls += 1
        call_id, report = new_id(), CallReport()
        outcome, code, retryable = Outcome.FAILED, str(ErrorCode.INTERNAL_ERROR), None
        try:
            self._open(call_id)
            answer = gateway.run(
                self.service.complete(self.target, request, report, call_id=call_id, timeout_seconds=self.signal.remaining_seconds()),
                self.signal,
            )
            outcome, code = Outcome.SUCCEEDED, ""
        except AttemptError as error:
            code, retryable = str(error.code), error.retryable
            raise
        except Aborted as aborted:
            timed_out = aborted.reason == AbortReason.TIMEOUT
            outcome, code = Outcome.ABORTED, str(ErrorCode.PROVIDER_TIMEOUT if timed_out else ErrorCode.CANCELLED)
            raise
        finally:
            cost = prices.cost_usd(self.target.provider, self.target.model, report)
            self.last_call = ClosedCall(call_id, outcome, report, code, retryable, cost)
        return answer

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Whatever raises inside, the usage log is complete before the attempt ends: a worker may be killed right after that."""
        try:
            yield
        except BaseException:
            persist(self.close_last_call)
            raise

    def close_last_call(self) -> None:
        """Close what is still open in the usage log. In a database section."""
        if self.last_call is NO_CALL:
            return
        call = self.last_call
        usage.close_call(call)
        if call.outcome == Outcome.SUCCEEDED:
            breakers.note_success(self.target.provider, self.target.model)
        else:
            breakers.note_failure(self.target.provider, self.target.model, call.error_code)
        self.last_call = NO_CALL

    def take_last_call(self) -> ClosedCall:
        """The call that is still open in the usage log, for whoever closes it with the success."""
        call, self.last_call = self.last_call, NO_CALL
        return call

    def _open(self, call_id: UUID) -> None:
        if self.writes.open_call(OpenCall(call_id, self.claim.job_id, self.claim.token, self._calls, self.target)):
            return
        # Exact, where the signal may lag behind by a notification.
        wanted_no_more = persist(lambda: leases.held_status(self.claim)) == JobStatus.CANCEL_REQUESTED
        self.signal.abort(AbortReason.CANCELLED if wanted_no_more else AbortReason.LEASE_LOST)
        raise Aborted(self.signal.reason or AbortReason.LEASE_LOST)
