from runtime_jobs.admin import events, foreign, jobs, results, service_tokens, usage

__all__ = ["events", "foreign", "jobs", "results", "service_tokens", "usage"]
