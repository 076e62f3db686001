"""Jobs that are shown to a runtime before it takes one: hidden from all others meanwhile, no attempt charged."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import transaction

from runtime_jobs import prepared
from runtime_jobs.services.selection import DUE, UNOFFERED, UNOFFERED_FROM_LANE, hold_limits, parameters_of, selecting, take
from runtime_jobs.states import Lane

_OFFER = f"""
    WITH RECURSIVE {selecting(UNOFFERED_FROM_LANE, free=UNOFFERED)}, offered AS (
        UPDATE ai_runtime_job j SET
            offered_to = %(worker)s, offer_until = statement_timestamp() + make_interval(secs => %(offer)s),
            updated_at = statement_timestamp()
        FROM numbered n WHERE j.id = n.id AND {DUE}
        RETURNING n.n, j.id
    )
    SELECT (SELECT count(*) FROM allowed), n, id FROM (VALUES (1)) AS always LEFT JOIN offered ON true ORDER BY n
"""  # noqa: S608 - put together from our own constants


def offer(*, lane: Lane | str, worker: str, job_types: Sequence[str], count: int, offer_seconds: float) -> list[UUID]:
    """Reserve up to `count` due jobs for the worker: hidden from all others until `offer_seconds` have passed. Costs no attempt.

    Live offers count towards limits. One that was made before is not made again until it has run out, to its own holder neither.
    """
    parameters: dict[str, Any] = {**parameters_of(str(lane), job_types, count), "worker": worker, "offer": offer_seconds}
    with transaction.atomic():
        hold_limits(parameters["limited"])
        return [job_id for _, job_id in take(_OFFER, parameters)]


_AVAILABLE = f"""
    WITH RECURSIVE {selecting(UNOFFERED_FROM_LANE, free=UNOFFERED, probe=False)}
    SELECT r.job_type, count(*) FROM ranked r JOIN allowed a USING (id) GROUP BY 1
"""  # noqa: S608 - put together from our own constants


def available(*, lane: Lane | str, job_types: Sequence[str], count: int) -> dict[str, int]:
    """How many jobs of each type somebody without an offer could claim now, up to `count` in all. A hint: nothing is locked."""
    return dict(prepared.run(_AVAILABLE, {**parameters_of(str(lane), job_types, count), "peek": count}))
