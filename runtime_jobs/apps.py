from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class RuntimeJobsConfig(AppConfig):
    name = "runtime_jobs"
    verbose_name = _("AI jobs")

    def ready(self) -> None:
        from runtime_jobs import checks, registry  # noqa: F401 - importing the checks registers them
        from runtime_jobs.services.roles import make_roles

        registry.discover()
        # After django.contrib.auth's receiver, which makes the permissions: its app is ready earlier (INSTALLED_APPS).
        post_migrate.connect(make_roles, sender=self, dispatch_uid="runtime_jobs.roles")
