from django.apps import AppConfig


class RuntimeJobsConfig(AppConfig):
    name = "runtime_jobs"
    verbose_name = "AI jobs"

    def ready(self) -> None:
        from runtime_jobs import checks, registry  # noqa: F401 - importing the checks registers them

        registry.discover()
