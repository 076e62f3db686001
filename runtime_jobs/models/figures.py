from django.db import models
from django.db.models.functions import Now


class HourlyFigures(models.Model):
    """What ended and what was called in one hour, by kind: so that a month's figures are read from some thousand rows, not from millions.

    Made from the jobs and calls themselves (services/figures.py), and kept when those are pruned.
    """

    hour = models.DateTimeField()  # its start
    lane = models.CharField(max_length=20)
    job_type = models.CharField(max_length=100)
    provider = models.CharField(max_length=50)
    model = models.CharField(max_length=200)
    error_code = models.CharField(max_length=40, blank=True, default="")  # of the jobs for the jobs, of the calls for the calls

    # Jobs, by the hour in which they ended.
    succeeded = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    # Calls, by the hour in which they began.
    calls = models.PositiveIntegerField(default=0)
    calls_failed = models.PositiveIntegerField(default=0)  # or aborted
    calls_unpriced = models.PositiveIntegerField(default=0)  # of which nobody knows what they cost
    input_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)
    cost_usd = models.DecimalField(max_digits=20, decimal_places=8, default=0)

    class Meta:
        db_table = "hourly_figures"
        default_permissions = ()
        constraints = [
            # Makes one hour counted twice impossible; also the index by which a range of hours is read.
            models.UniqueConstraint(fields=["hour", "lane", "job_type", "provider", "model", "error_code"], name="figures_once_per_kind"),
        ]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H} {self.job_type}"


class RolledUpHour(models.Model):
    """An hour whose figures are there. Until it is final, it is counted again from time to time."""

    hour = models.DateTimeField(primary_key=True)
    counted_at = models.DateTimeField(db_default=Now())
    final = models.BooleanField(default=False)

    class Meta:
        db_table = "rolled_up_hour"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H}"
