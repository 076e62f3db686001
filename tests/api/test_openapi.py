"""The published description is the one that the code gives."""

from pathlib import Path

import pytest
from django.core.management import call_command

from tests.factories import UserFactory

GOLDEN = Path(__file__).parents[2] / "runtime_jobs/api/openapi.yaml"
UPDATE = "python manage.py spectacular --file runtime_jobs/api/openapi.yaml --validate --fail-on-warn"


@pytest.fixture
def generated(tmp_path):
    file = tmp_path / "openapi.yaml"
    call_command("spectacular", file=str(file), validate=True, fail_on_warn=True)
    return file.read_text()


def test_the_description_in_the_repository_is_up_to_date_and_valid(generated):
    assert generated == GOLDEN.read_text(), f"The API has changed. Look at what that does to clients, then run: {UPDATE}"


@pytest.mark.django_db
def test_users_can_fetch_the_description(client):
    client.force_login(UserFactory())

    response = client.get("/api/schema/")

    assert response.status_code == 200
    assert response["Content-Type"] == "application/json"
    described = response.json()
    assert described["openapi"].startswith("3.1")
    assert list(described["paths"]) == ["/api/jobs/", "/api/jobs/{id}/", "/api/jobs/{id}/cancel/"]
    operations = [operation["operationId"] for path in described["paths"].values() for operation in path.values()]
    assert operations == ["listJobs", "getJob", "cancelJob"]


@pytest.mark.django_db
def test_strangers_cannot_fetch_the_description(client):
    response = client.get("/api/schema/")

    assert response.status_code == 401
    assert response.json()["errorCode"] == "not_authenticated"
