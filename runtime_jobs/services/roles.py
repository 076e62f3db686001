"""The roles of staff: groups that every migrate makes, and completes when new permissions come. What else a group got stays."""

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import Group, Permission

VIEWER, OPERATOR, ADMINISTRATOR = "viewer", "operator", "administrator"

_VIEW = frozenset(
    f"view_{model}"
    for model in (
        "airuntimejob", "aijobattempt", "airuntimeresult", "aiusagelog", "aijobevent", "aieventdelivery", "aistaffevent", "runtimeinstance",
        "claimgate",
    )
)  # fmt: skip
_OPERATE = frozenset(
    {"rerun_job", "cancel_job", "release_lease", "export_jobs", "pause_claims", "resume_claims", "drain_worker", "retry_delivery"}
)
_ADMINISTER = frozenset(
    f"{what}_{model}" for model in ("runtimeservicetoken", "aimodelcredential") for what in ("view", "add", "change")
) | {"revoke_credential", "revoke_service_token"}  # fmt: skip

# `view_sensitive` is in none: who may read people's texts is decided person by person.
ROLES: Mapping[str, frozenset[str]] = {
    VIEWER: _VIEW,
    OPERATOR: _VIEW | _OPERATE,
    ADMINISTRATOR: _VIEW | _OPERATE | _ADMINISTER,
}


def make_roles(**_signal: Any) -> None:
    """Receiver of post_migrate, after the one that makes the permissions."""
    names = frozenset().union(*ROLES.values())
    ours = Permission.objects.filter(content_type__app_label="runtime_jobs", codename__in=names)
    by_name = {permission.codename: permission for permission in ours}
    for role, wanted in ROLES.items():
        group, _ = Group.objects.get_or_create(name=role)
        group.permissions.add(*(by_name[name] for name in wanted if name in by_name))
