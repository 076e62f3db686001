import django.db.models.functions.datetime
import pgtrigger.compiler
import pgtrigger.migrations
from django.conf import settings
from django.db import migrations, models

import runtime_jobs.models.base


class Migration(migrations.Migration):
    dependencies = [
        ("runtime_jobs", "0003_login_tries"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="AiStaffEvent",
            fields=[
                ("id", models.UUIDField(default=runtime_jobs.models.base.new_id, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=60)),
                ("actor_id", models.CharField(max_length=60)),
                ("actor_name", models.CharField(max_length=150)),
                ("subject_type", models.CharField(max_length=60)),
                ("subject_id", models.CharField(blank=True, default="", max_length=300)),
                ("reason", models.CharField(blank=True, default="", max_length=500)),
                ("data", models.JSONField(blank=True, default=dict)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
            ],
            options={
                "verbose_name": "staff action",
                "verbose_name_plural": "staff actions",
                "db_table": "ai_staff_event",
            },
        ),
        migrations.AlterModelOptions(
            name="aieventdelivery",
            options={
                "permissions": [("retry_delivery", "Can let a parked delivery be tried again")],
                "verbose_name": "event delivery",
                "verbose_name_plural": "event deliveries",
            },
        ),
        migrations.AlterModelOptions(
            name="aijobattempt",
            options={"verbose_name": "attempt", "verbose_name_plural": "attempts"},
        ),
        migrations.AlterModelOptions(
            name="aijobevent",
            options={"verbose_name": "event", "verbose_name_plural": "events"},
        ),
        migrations.AlterModelOptions(
            name="aijobsnapshot",
            options={"verbose_name": "snapshot", "verbose_name_plural": "snapshots"},
        ),
        migrations.AlterModelOptions(
            name="aimodelcredential",
            options={"verbose_name": "model credential", "verbose_name_plural": "model credentials"},
        ),
        migrations.AlterModelOptions(
            name="airuntimejob",
            options={
                "permissions": [
                    ("rerun_job", "Can rerun jobs"),
                    ("cancel_job", "Can cancel jobs"),
                    ("release_lease", "Can take a job from its worker"),
                    ("export_jobs", "Can export lists of jobs"),
                    ("view_sensitive", "Can see inputs and outputs in clear"),
                ],
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
            },
        ),
        migrations.AlterModelOptions(
            name="airuntimeresult",
            options={"verbose_name": "result", "verbose_name_plural": "results"},
        ),
        migrations.AlterModelOptions(
            name="claimgate",
            options={
                "permissions": [("pause_claims", "Can pause lanes, job types and models"), ("resume_claims", "Can resume what is paused")],
                "verbose_name": "pause",
                "verbose_name_plural": "pauses",
            },
        ),
        migrations.AlterModelOptions(
            name="runtimeinstance",
            options={
                "permissions": [("drain_worker", "Can let a worker drain")],
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
            },
        ),
        migrations.AlterModelOptions(
            name="runtimeservicetoken",
            options={"verbose_name": "service token", "verbose_name_plural": "service tokens"},
        ),
        migrations.AddIndex(
            model_name="aistaffevent",
            index=models.Index(fields=["subject_type", "subject_id", "-id"], name="staff_event_subject"),
        ),
        migrations.AddIndex(
            model_name="aistaffevent",
            index=models.Index(fields=["actor_name", "-id"], name="staff_event_actor"),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="aistaffevent",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="RAISE EXCEPTION 'pgtrigger: Cannot update or delete rows from % table', TG_TABLE_NAME;",
                    hash="cda571ff2e341c6da855a1b0daaf335469e4eb8b",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_54a80",
                    table="ai_staff_event",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="aistaffevent",
            trigger=pgtrigger.compiler.Trigger(
                name="no_truncate",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="RAISE EXCEPTION 'table % is not truncated; use manage.py prune', TG_TABLE_NAME USING ERRCODE = 'check_violation';",
                    hash="755711b3a648226d5e0885b8ac1bc95d5bba5fe4",
                    level="STATEMENT",
                    operation="TRUNCATE",
                    pgid="pgtrigger_no_truncate_04fd3",
                    table="ai_staff_event",
                    when="BEFORE",
                ),
            ),
        ),
    ]
