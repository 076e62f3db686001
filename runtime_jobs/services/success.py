"""The end that every job should have: one statement that fences, ends the job, stores the result, closes the attempt and tells the story.

With a projector it is the first statement of a transaction and the projector comes second: whoever lost the lease has not projected
anything. Without one it is a transaction by itself.
"""

import json
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from runtime_jobs import prepared
from runtime_jobs.models.base import new_id
from runtime_jobs.services import usage
from runtime_jobs.services.events import deliver_to_handlers, with_origin
from runtime_jobs.services.usage import ClosedCall

# retrying with the token kept is a lapse that nobody has taken over yet: a paid answer that is only late still counts. The attempt must not
# have answered before. The event's number is read from a snapshot that may be older than the row's lock: whoever wrote an event meanwhile
# makes the insert fail on event_seq_once_per_job, and the caller then looks again, under the lock.
_WIN = f"""
    WITH closed_call AS ({usage.CLOSE}),
    won AS (
        UPDATE ai_runtime_job SET
            status = 'succeeded', finished_at = statement_timestamp(), lock_until = NULL, offered_to = NULL, offer_until = NULL,
            error_code = '', error_message = '', internal_error = '', updated_at = statement_timestamp()
        WHERE id = %(job_id)s AND lock_token = %(lock_token)s AND status IN ('running', 'retrying')
        RETURNING id, user_id, attempt_no, retry_count, max_retry_count, model_provider || '/' || model_name AS model_key
    ), attempt AS (
        SELECT a.id, a.outcome = 'lapsed' AS late FROM ai_job_attempt a JOIN won ON a.job_id = won.id AND a.attempt_no = won.attempt_no
    ), result AS (
        INSERT INTO ai_runtime_result (id, job_id, user_id, runtime_instance_id, status, attempt_no, result_idempotency_key, output_hash,
                                       raw_output, validated_output, schema_version, validation_errors, repairs)
        SELECT %(result_id)s, won.id, won.user_id, %(worker)s, 'succeeded', won.attempt_no, %(key)s, %(output_hash)s,
               %(raw_output)s, %(validated)s, %(schema_version)s, '[]', %(repairs)s
        FROM won
    ), answered AS (
        UPDATE ai_job_attempt a SET
            ended_at = statement_timestamp(), outcome = 'succeeded', error_code = '', internal_error = '', answer_digest = %(digest)s,
            answer = jsonb_build_object(
                'job_status', 'succeeded', 'attempt_no', won.attempt_no, 'retry_count', won.retry_count,
                'max_retry_count', won.max_retry_count, 'result_id', %(result_id)s::text, 'refused', '', 'issues', '[]'::jsonb,
                'next_attempt_at', NULL, 'late', attempt.late, 'duplicate', false)
        FROM won, attempt WHERE a.id = attempt.id
        RETURNING a.answer
    ), recovered AS (
        DELETE FROM claim_gate g USING won WHERE g.kind = 'breaker' AND g.key = won.model_key
    ), event AS (
        INSERT INTO ai_job_event (id, job_id, seq, name, attempt_no, actor_id, actor_name, data)
        SELECT %(event_id)s, won.id, (SELECT coalesce(max(seq), 0) + 1 FROM ai_job_event e WHERE e.job_id = won.id),
               'job.succeeded', won.attempt_no, '', %(worker)s, %(event_data)s
        FROM won
        RETURNING id, job_id, seq, name
    )
    SELECT answered.answer::text, event.id, event.job_id, event.seq, event.name FROM answered, event
"""  # noqa: S608 - put together from our own constants


def win(
    *,
    job_id: UUID,
    lock_token: str,
    worker: str,
    digest: str,
    key: str,
    output_hash: str,
    raw_output: str,
    validated_output: Any,
    schema_version: str,
    repairs: list[str],
    call: ClosedCall,
) -> dict[str, Any] | None:
    """End the job as succeeded, if this token still holds it. The attempt's stored answer, or None: then only `call` was closed.

    Raises IntegrityError when the result's key is taken or an event came between; nothing is written then.
    """
    rows = prepared.run(
        _WIN,
        {
            **call.parameters(),
            "job_id": job_id,
            "lock_token": lock_token,
            "worker": worker,
            "digest": digest,
            "key": key,
            "output_hash": output_hash,
            "raw_output": raw_output,
            "validated": Jsonb(validated_output),
            "schema_version": schema_version,
            "repairs": Jsonb(repairs),
            "result_id": new_id(),
            "event_id": new_id(),
            "event_data": Jsonb(with_origin({"status": "succeeded"})),
        },
    )
    if not rows:
        return None
    answer, *event = rows[0]
    deliver_to_handlers([tuple(event)])
    return json.loads(answer)  # type: ignore[no-any-return]
