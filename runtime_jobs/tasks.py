"""The two thin processors that django-q2 calls: one engine behind both (runtime_jobs/engine)."""

from runtime_jobs.engine.broker import ticket_taken
from runtime_jobs.engine.lane import run_lane


def interactive_job_worker(lane: str) -> None:
    """Work on short jobs that somebody waits for, until this worker drains or recycles."""
    ticket_taken()
    run_lane(lane)


def background_job_worker(lane: str) -> None:
    """Work on long jobs, apart from the short ones."""
    ticket_taken()
    run_lane(lane)
