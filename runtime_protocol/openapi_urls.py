"""Only the protocol's paths, for the generator of openapi.yaml."""

from django.urls import include, path

urlpatterns = [path("internal/runtime/", include("runtime_protocol.urls"))]
