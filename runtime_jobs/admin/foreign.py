"""django-q2's own pages let staff run any function and pass by our states: they are not shown."""

import contextlib

from django.contrib import admin
from django.contrib.admin.exceptions import NotRegistered
from django_q.models import Failure, OrmQ, Schedule, Success

for model in (Failure, OrmQ, Schedule, Success):
    with contextlib.suppress(NotRegistered):
        admin.site.unregister(model)
