"""Users and roles: Django's own pages, with a record that survives the person who made a change."""

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User

from runtime_jobs.admin.readonly import AuditedAdmin

admin.site.unregister((User, Group))


@admin.register(User)
class AuditedUserAdmin(AuditedAdmin, UserAdmin):
    pass


@admin.register(Group)
class AuditedGroupAdmin(AuditedAdmin, GroupAdmin):
    pass
