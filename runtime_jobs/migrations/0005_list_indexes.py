"""What the admin's list filters by. Built beside the running system: no job waits for an index over a long history."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("runtime_jobs", "0004_staff_actions")]

    operations = [
        AddIndexConcurrently(
            model_name="airuntimejob",
            index=models.Index(fields=["lane", "-id"], name="job_lane"),
        ),
        AddIndexConcurrently(
            model_name="airuntimejob",
            index=models.Index(fields=["model_provider", "-id"], name="job_provider"),
        ),
        AddIndexConcurrently(
            model_name="airuntimejob",
            index=models.Index(condition=models.Q(("error_code", ""), _negated=True), fields=["error_code", "-id"], name="job_error"),
        ),
    ]
