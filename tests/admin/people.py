"""Staff with just these permissions."""

from typing import Any

from django.contrib.auth.models import Permission

from tests.factories import UserFactory

LIST = "/admin/runtime_jobs/airuntimejob/"


def staff(*permissions: str, **columns: Any) -> Any:
    user: Any = UserFactory(is_staff=True, **columns)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return user


def root(**columns: Any) -> Any:
    return UserFactory(is_staff=True, is_superuser=True, **columns)
