from django.urls import path, re_path

from runtime_jobs.api import views

app_name = "api"
urlpatterns = [
    path("jobs/", views.JobList.as_view(), name="jobs"),
    path("jobs/<uuid:id>/", views.JobDetail.as_view(), name="job"),
    path("jobs/<uuid:id>/cancel/", views.JobCancel.as_view(), name="cancel"),
    path("schema/", views.Schema.as_view(), name="schema"),
    re_path("", views.Nothing.as_view()),
]
