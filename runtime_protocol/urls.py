"""The paths, as the runtime project has them. None has a trailing slash; whatever is not here is answered with 404 in JSON."""

from django.urls import path, re_path

from runtime_protocol import views

_jobs = views.JobsViewSet.as_view

urlpatterns = [
    path("jobs/poll", _jobs({"post": "poll"})),
    path("jobs/heartbeat", _jobs({"post": "heartbeat_all"})),
    path("jobs/<str:jobId>/lock", _jobs({"post": "lock"})),
    path("jobs/<str:jobId>/heartbeat", _jobs({"post": "heartbeat"})),
    path("jobs/<str:jobId>/snapshot", _jobs({"get": "snapshot"})),
    path("jobs/<str:jobId>/result", _jobs({"post": "result"})),
    path("jobs/<str:jobId>/fail", _jobs({"post": "fail"})),
    path("jobs/<str:jobId>/release", _jobs({"post": "release"})),
    path("model-credentials/resolve", views.CredentialsViewSet.as_view({"post": "resolve"})),
    path("invocation-logs", views.LogsViewSet.as_view({"post": "create"})),
    path("health", views.ServerViewSet.as_view({"get": "health"})),
    path("schema", views.ContractViewSet.as_view({"get": "schema_file"})),
    re_path("", views.Nothing.as_view()),
]
