"""The business's own tables of the example: what its projector writes. A real application has such models of its own."""

from django.db import models
from django.db.models.functions import Now


class ExtractedText(models.Model):
    """The summary of one text; there is one per succeeded job."""

    # No foreign key: the artifact outlives its job, which `manage.py prune` deletes when its time has come. Unique: a projector that ran
    # twice cannot write twice.
    job_id = models.UUIDField(unique=True)
    target_type = models.CharField(max_length=100)
    target_id = models.CharField(max_length=200)
    summary = models.TextField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "synthetic_extracted_text"

    def __str__(self) -> str:
        return self.summary[:80]


class ExtractedFact(models.Model):
    text = models.ForeignKey(ExtractedText, models.CASCADE, related_name="facts")
    position = models.PositiveSmallIntegerField()
    fact = models.TextField()
    paragraph = models.CharField(max_length=20)

    class Meta:
        db_table = "synthetic_extracted_fact"
        constraints = [
            # Makes a projector that ran twice visible at once.
            models.UniqueConstraint(fields=["text", "position"], name="extracted_fact_position"),
        ]

    def __str__(self) -> str:
        return self.fact[:80]
