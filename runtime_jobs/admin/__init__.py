from runtime_jobs.admin import events, foreign, jobs, results, usage

__all__ = ["events", "foreign", "jobs", "results", "usage"]
