"""Everything here runs on real parts: the database, qcluster processes, a provider on loopback."""

from collections.abc import Iterator

import pytest

from tests.factories import CredentialFactory, UserFactory
from tests.support.provider_simulator import ProviderSimulator


@pytest.fixture
def provider() -> Iterator[ProviderSimulator]:
    with ProviderSimulator() as simulator:
        yield simulator


@pytest.fixture
def platform(transactional_db, provider):
    """A superuser and a live platform key for the provider."""
    user = UserFactory(username="root", is_superuser=True, is_staff=True)
    CredentialFactory(base_url=provider.url)
    return user
