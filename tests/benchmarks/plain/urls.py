"""One view for each call of the cycle, at the call's name."""

from django.urls import path

from tests.benchmarks.plain.views import replay
from tests.benchmarks.protocol_calls import CYCLE

urlpatterns = [path(made.name, replay(made.name)) for made in CYCLE]
