"""Where everything is mounted."""

from django.contrib import admin
from django.urls import include, path

from config.health import healthz

urlpatterns = [
    path("healthz", healthz),
    path("admin/", admin.site.urls),
    path("api/", include("runtime_jobs.api.urls")),
    path("internal/runtime/", include("runtime_protocol.urls")),
]
