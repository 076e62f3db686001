from django.db import models


class LoginTries(models.Model):
    """How often somebody has tried to log in lately, under one key: a name, an address, or both (services/login_throttle.py)."""

    # Keyed hash: people type their password into the name's field.
    key = models.CharField(max_length=64, primary_key=True)
    tries = models.PositiveIntegerField()
    # All are forgotten then.
    until = models.DateTimeField()

    class Meta:
        db_table = "login_tries"
        default_permissions = ()
        indexes = [
            # What is forgotten is deleted.
            models.Index(fields=["until"], name="login_tries_until"),
        ]

    def __str__(self) -> str:
        return self.key[:8]
