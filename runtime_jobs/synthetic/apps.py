from django.apps import AppConfig


class SyntheticConfig(AppConfig):
    name = "runtime_jobs.synthetic"
    label = "synthetic"
    verbose_name = "Synthetic example"
