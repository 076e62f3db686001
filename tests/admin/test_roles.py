"""The roles: made by migrate, each with what its people need and no more."""

import pytest
from django.contrib.auth.models import Group, Permission
from django.core.management import call_command

from runtime_jobs.services import roles
from tests.admin import jobs
from tests.admin.people import LIST
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db


def permissions(role):
    return set(Group.objects.get(name=role).permissions.values_list("codename", flat=True))


def test_migrate_makes_the_roles_and_every_permission_that_they_name_exists():
    assert {role: permissions(role) for role in roles.ROLES} == {role: set(names) for role, names in roles.ROLES.items()}


def test_migrating_again_completes_a_role_and_takes_nothing_from_it():
    group = Group.objects.get(name=roles.OPERATOR)
    group.permissions.remove(Permission.objects.get(codename="rerun_job"))
    group.permissions.add(Permission.objects.get(codename="view_sensitive"))
    call_command("migrate", verbosity=0)
    assert permissions(roles.OPERATOR) == roles.ROLES[roles.OPERATOR] | {"view_sensitive"}
    assert Group.objects.filter(name__in=roles.ROLES).count() == 3


def test_no_role_reads_sensitive_text_or_makes_users():
    for role in roles.ROLES:
        assert not permissions(role) & {
            "view_sensitive",
            "add_user",
            "change_user",
            "change_group",
            "add_airuntimejob",
            "delete_airuntimejob",
        }


@pytest.mark.parametrize(
    ("role", "rerun", "export", "tokens"),
    [(roles.VIEWER, 403, 403, 403), (roles.OPERATOR, 302, 200, 403), (roles.ADMINISTRATOR, 302, 200, 200)],
)
def test_what_each_role_may(client, role, rerun, export, tokens):
    user = UserFactory(is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    client.force_login(user)
    job = jobs.failed()
    assert client.get(f"{LIST}{job.pk}/change/").status_code == 200
    assert client.post(f"{LIST}{job.pk}/rerun/", {"reason": "x"}).status_code == rerun
    assert client.get(f"{LIST}export/").status_code == export
    assert client.get("/admin/runtime_jobs/runtimeservicetoken/add/").status_code == tokens
    for page in ("aiusagelog", "aijobevent", "runtimeinstance", "claimgate", "aistaffevent", "aieventdelivery", "airuntimeresult"):
        assert client.get(f"/admin/runtime_jobs/{page}/").status_code == 200, page
