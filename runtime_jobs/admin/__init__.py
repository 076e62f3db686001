from runtime_jobs.admin import credentials, events, foreign, gates, jobs, people, results, service_tokens, usage, workers

__all__ = ["credentials", "events", "foreign", "gates", "jobs", "people", "results", "service_tokens", "usage", "workers"]
