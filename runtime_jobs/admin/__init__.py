from runtime_jobs.admin import events, foreign, gates, jobs, people, results, service_tokens, usage, workers

__all__ = ["events", "foreign", "gates", "jobs", "people", "results", "service_tokens", "usage", "workers"]
