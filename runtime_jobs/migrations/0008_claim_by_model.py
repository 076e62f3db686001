"""The claim steps over blocked models instead of walking over their jobs. Built beside the running system, as 0005."""

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("runtime_jobs", "0007_revoke_credential")]

    operations = [
        AddIndexConcurrently(
            model_name="airuntimejob",
            index=models.Index(
                condition=models.Q(("status", "queued")),
                fields=["lane", "job_type", "model_provider", "model_name", "sort_at", "id"],
                name="job_model_queued",
            ),
        ),
        AddIndexConcurrently(
            model_name="airuntimejob",
            index=models.Index(
                condition=models.Q(("status", "retrying")),
                fields=["lane", "job_type", "model_provider", "model_name", "available_at", "id"],
                name="job_model_retrying",
            ),
        ),
        RemoveIndexConcurrently(model_name="airuntimejob", name="job_claim_queued"),
        RemoveIndexConcurrently(model_name="airuntimejob", name="job_claim_retrying"),
    ]
