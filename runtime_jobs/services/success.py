"""The end that every job should have: one statement that fences, ends jobs, stores results, closes attempts and calls, and tells the story.

With a projector it is the first statement of a transaction and the projector comes second: whoever lost the lease has not projected
anything. Without one it is a transaction by itself, and many jobs may share it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from runtime_jobs.models.base import new_id
from runtime_jobs.services import usage
from runtime_jobs.services.events import deliver_to_handlers, with_origin
from runtime_jobs.services.given import GivenStatement
from runtime_jobs.services.usage import ClosedCall


@dataclass(frozen=True)
class Success:
    """What ends a job as succeeded."""

    job_id: UUID
    lock_token: str  # its hash
    worker: str
    digest: str  # by which a repeat is recognised
    key: str
    output_hash: str
    raw_output: str
    validated_output: Any
    schema_version: str
    repairs: Sequence[str]
    call: ClosedCall

    def as_row(self) -> dict[str, Any]:
        """By _COLUMNS, as JSON has it."""
        return {
            "job_id": str(self.job_id),
            "lock_token": self.lock_token,
            "worker": self.worker,
            "digest": self.digest,
            "key": self.key,
            "output_hash": self.output_hash,
            "raw_output": self.raw_output,
            "validated": self.validated_output,
            "schema_version": self.schema_version,
            "repairs": list(self.repairs),
            "result_id": str(new_id()),
            "event_id": str(new_id()),
            "event_data": with_origin({"status": "succeeded"}),
            **self.call.as_row(),
        }


# retrying with the token kept is a lapse that nobody has taken over yet: a paid answer that is only late still counts. The attempt must not
# have answered before. The event's number is read from a snapshot that may be older than the row's lock: whoever wrote an event meanwhile
# makes the insert fail on event_seq_once_per_job, and the caller then looks again, under the lock. (The CASE is as in
# services/selection.py.)
_COLUMNS = {
    "job_id": "uuid", "lock_token": "text", "worker": "text", "digest": "text", "key": "text", "output_hash": "text", "raw_output": "text",
    "validated": "jsonb", "schema_version": "text", "repairs": "jsonb", "result_id": "uuid", "event_id": "uuid", "event_data": "jsonb",
    **usage.CALL_COLUMNS,
}  # fmt: skip
_WIN = GivenStatement(
    _COLUMNS,
    f""", closed_call AS ({usage.CLOSE}
    ), won AS (
        UPDATE ai_runtime_job j SET
            status = 'succeeded', finished_at = statement_timestamp(), lock_until = NULL, offered_to = NULL, offer_until = NULL,
            error_code = '', error_message = '', internal_error = '', updated_at = statement_timestamp()
        FROM given g
        WHERE j.id = g.job_id AND j.lock_token = g.lock_token
          AND CASE j.status WHEN 'running' THEN true WHEN 'retrying' THEN true ELSE false END
        RETURNING j.id, j.user_id, j.attempt_no, j.retry_count, j.max_retry_count, j.model_provider || '/' || j.model_name AS model_key,
                  g.worker, g.digest, g.key, g.output_hash, g.raw_output, g.validated, g.schema_version, g.repairs, g.result_id, g.event_id,
                  g.event_data
    ), result AS (
        INSERT INTO ai_runtime_result (id, job_id, user_id, runtime_instance_id, status, attempt_no, result_idempotency_key, output_hash,
                                       raw_output, validated_output, schema_version, validation_errors, repairs)
        SELECT result_id, id, user_id, worker, 'succeeded', attempt_no, key, output_hash,
               raw_output, validated, schema_version, '[]', repairs
        FROM won
    ), answered AS (
        UPDATE ai_job_attempt a SET
            ended_at = statement_timestamp(), outcome = 'succeeded', error_code = '', internal_error = '', answer_digest = won.digest,
            answer = jsonb_build_object(
                'job_status', 'succeeded', 'attempt_no', won.attempt_no, 'retry_count', won.retry_count,
                'max_retry_count', won.max_retry_count, 'result_id', won.result_id::text, 'refused', '', 'issues', '[]'::jsonb,
                'next_attempt_at', NULL, 'late', a.outcome = 'lapsed', 'duplicate', false)
        FROM won WHERE a.job_id = won.id AND a.attempt_no = won.attempt_no
        RETURNING a.job_id, a.lock_token, a.answer
    ), recovered AS (
        DELETE FROM claim_gate g USING won WHERE g.kind = 'breaker' AND g.key = won.model_key
    ), event AS (
        INSERT INTO ai_job_event (id, job_id, seq, name, attempt_no, actor_id, actor_name, data)
        SELECT event_id, id, (SELECT coalesce(max(seq), 0) + 1 FROM ai_job_event e WHERE e.job_id = won.id),
               'job.succeeded', attempt_no, '', worker, event_data
        FROM won
        RETURNING id, job_id, seq, name
    )
    SELECT answered.lock_token, answered.answer::text, event.id, event.job_id, event.seq, event.name FROM answered JOIN event USING (job_id)
""",  # noqa: S608 - put together from our own constants
)


def win(successes: Sequence[Success]) -> dict[str, dict[str, Any]]:
    """End jobs as succeeded where their token still holds them: the attempts' stored answers, by that token's hash.

    Of a success that is missing in the answer only the call was closed. Raises IntegrityError when the key of a result is taken or an event
    came between; nothing is written then, for none of them.
    """
    # In one order, so that two that write several rows do not wait for each other.
    given = [success.as_row() for success in sorted(successes, key=lambda success: success.job_id)]
    rows = _WIN.run(given)
    deliver_to_handlers([tuple(event) for _, _, *event in rows])
    return {lock_token: json.loads(answer) for lock_token, answer, *_ in rows}
