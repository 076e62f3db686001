"""The paths, as the runtime project has them. None has a trailing slash; whatever is not here is answered with 404 in JSON."""

from django.urls import path, re_path

from runtime_protocol.views.base import Nothing
from runtime_protocol.views.endings import EndingsViewSet
from runtime_protocol.views.heartbeats import HeartbeatsViewSet
from runtime_protocol.views.holding import CredentialsViewSet, SnapshotsViewSet
from runtime_protocol.views.leasing import LeasingViewSet
from runtime_protocol.views.server import ContractViewSet, HealthViewSet
from runtime_protocol.views.usage import LogsViewSet

urlpatterns = [
    path("jobs/poll", LeasingViewSet.as_view({"post": "poll"})),
    path("jobs/heartbeat", HeartbeatsViewSet.as_view({"post": "heartbeat_all"})),
    path("jobs/<str:jobId>/lock", LeasingViewSet.as_view({"post": "lock"})),
    path("jobs/<str:jobId>/heartbeat", HeartbeatsViewSet.as_view({"post": "heartbeat"})),
    path("jobs/<str:jobId>/snapshot", SnapshotsViewSet.as_view({"get": "snapshot"})),
    path("jobs/<str:jobId>/result", EndingsViewSet.as_view({"post": "result"})),
    path("jobs/<str:jobId>/fail", EndingsViewSet.as_view({"post": "fail"})),
    path("jobs/<str:jobId>/release", EndingsViewSet.as_view({"post": "release"})),
    path("model-credentials/resolve", CredentialsViewSet.as_view({"post": "resolve"})),
    path("invocation-logs", LogsViewSet.as_view({"post": "create"})),
    path("health", HealthViewSet.as_view({"get": "health"})),
    path("schema", ContractViewSet.as_view({"get": "schema_file"})),
    re_path("", Nothing.as_view()),
]
