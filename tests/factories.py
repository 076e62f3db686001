"""Rows for tests, made the way applications make them: through the services wherever there is one."""

from typing import Any

import factory
from django.contrib.auth import get_user_model

from runtime_jobs.models import AiModelCredential, AiRuntimeJob
from runtime_jobs.services.credentials import create_credential
from runtime_jobs.services.jobs import create_job

KEY = "sk-test-0123456789abcdef0123456789abcdef"


class UserFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = get_user_model()
        skip_postgeneration_save = True

    username = factory.Sequence(lambda number: f"user{number}")
    password = factory.django.Password("pass word 1")


class CredentialFactory(factory.Factory):
    """A live platform credential of provider `simulator`; give `base_url` where calls are made."""

    class Meta:
        model = AiModelCredential

    name = factory.Sequence(lambda number: f"credential {number}")
    provider = "simulator"
    base_url = "http://127.0.0.1:9/v1"
    api_key = KEY
    user_id = None

    @classmethod
    def _create(cls, model_class: Any, *args: Any, **kwargs: Any) -> AiModelCredential:
        return create_credential(**kwargs)


TEXT = "The Danube is 2,850 kilometres long.\n\nIt rises in the Black Forest and ends in the Black Sea."


def payload(text: str = TEXT) -> dict[str, Any]:
    from runtime_jobs.synthetic.ai_jobs import split_paragraphs

    return {"paragraphs": split_paragraphs(text)}


class JobFactory(factory.Factory):
    """A queued job, through create_job."""

    class Meta:
        model = AiRuntimeJob

    user = factory.SubFactory(UserFactory)
    job_type = "synthetic.extract_facts"
    payload = factory.LazyFunction(payload)
    target_type = "document"
    target_id = factory.Sequence(str)
    credential = factory.SubFactory(CredentialFactory)

    @classmethod
    def _create(cls, model_class: Any, *args: Any, **kwargs: Any) -> AiRuntimeJob:
        return create_job(**kwargs)
