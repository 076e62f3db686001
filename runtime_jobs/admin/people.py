"""Users and roles: Django's own pages, with a record that survives the person who made a change."""

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User

from runtime_jobs.admin.readonly import AuditedAdmin

admin.site.unregister((User, Group))


@admin.register(User)
class AuditedUserAdmin(AuditedAdmin, UserAdmin):
    # Facts, not settings; and Django's two boxes for a time have no labels.
    readonly_fields = ("last_login", "date_joined")


@admin.register(Group)
class AuditedGroupAdmin(AuditedAdmin, GroupAdmin):
    pass
