from django.apps import AppConfig


class RuntimeJobsConfig(AppConfig):
    name = "runtime_jobs"
    verbose_name = "AI jobs"

    def ready(self) -> None:
        from runtime_jobs import registry

        registry.discover()
