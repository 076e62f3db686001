"""Where everything is mounted."""

from django.contrib import admin
from django.urls import path

from config.health import healthz

urlpatterns = [
    path("healthz", healthz),
    path("admin/", admin.site.urls),
]
