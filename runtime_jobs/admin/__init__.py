from runtime_jobs.admin import credentials, events, field_names, foreign, gates, jobs, people, results, service_tokens, usage, workers

__all__ = ["credentials", "events", "field_names", "foreign", "gates", "jobs", "people", "results", "service_tokens", "usage", "workers"]
