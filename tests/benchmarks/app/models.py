"""The tables that jobs write to. Without migrations: `migrate --run-syncdb` makes them."""

from django.db import models


class Artifact(models.Model):
    """What a projector writes, five a job."""

    job = models.CharField(max_length=40)
    position = models.PositiveSmallIntegerField()
    text = models.TextField()

    class Meta:
        db_table = "bench_artifact"
        constraints = [models.UniqueConstraint(fields=["job", "position"], name="bench_artifact_once")]

    def __str__(self) -> str:
        return f"{self.job} {self.position}"


class Called(models.Model):
    """When an executor was called, by the database's clock."""

    key = models.CharField(max_length=60, primary_key=True)
    at = models.DateTimeField()

    class Meta:
        db_table = "bench_called"

    def __str__(self) -> str:
        return self.key
