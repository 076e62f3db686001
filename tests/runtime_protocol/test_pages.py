"""The protocol as pages of the admin: complete, under the strict policy, and only for those who may see the service tokens."""

import re

import pytest
from django.contrib.auth.models import Permission
from django.urls import reverse

from runtime_protocol.files import CONTRACT, DOCUMENT
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db


def article_of(html):
    return html.split("<article")[1].split("</article>")[0]


PAGES = ["admin:runtime_protocol", "admin:runtime_protocol_contract"]


@pytest.fixture
def reader():
    user = UserFactory(is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_runtimeservicetoken"))
    return user


def test_the_document_is_readable_with_every_heading_table_and_example(client, reader):
    client.force_login(reader)
    page = client.get(reverse("admin:runtime_protocol"))
    html, contents = article_of(page.content.decode()), page.content.decode().split("<nav aria-label")[-1]
    source = DOCUMENT.read_text()
    headings = re.findall(r"^##+ (.+)$", source, re.MULTILINE)
    assert len(re.findall(r'<h[23] id="[a-z0-9-]+">', html)) == len(headings) > 15
    assert html.count("<table") >= source.count("| --- |") / 3
    assert html.count('class="language-http"') == source.count("```http") > 8
    assert "<!--" not in html
    for anchor in re.findall(r'<a href="#([a-z0-9-]+)">', contents):
        assert f'id="{anchor}"' in html


def test_it_needs_nothing_that_the_policy_forbids(client, reader):
    client.force_login(reader)
    page = client.get(reverse("admin:runtime_protocol"))
    assert not re.search(r"<script|<style|<img|<iframe|\sstyle=|\son[a-z]+=", article_of(page.content.decode()))
    assert "'unsafe-inline'" not in page["Content-Security-Policy"]


def test_the_contract_is_the_file_that_runtimes_get(client, reader):
    client.force_login(reader)
    answer = client.get(reverse("admin:runtime_protocol_contract"))
    assert (answer["Content-Type"], answer.content) == ("application/yaml", CONTRACT.read_bytes())


def test_the_index_links_to_it_for_those_who_may_read_it(client, reader):
    link = f'href="{reverse("admin:runtime_protocol")}"'
    client.force_login(reader)
    assert link in client.get(reverse("admin:index")).content.decode()
    client.force_login(UserFactory(is_staff=True))
    assert link not in client.get(reverse("admin:index")).content.decode()


@pytest.mark.parametrize("page", PAGES)
def test_staff_without_the_permission_are_refused_and_strangers_sent_to_the_log_in(client, page):
    assert client.get(reverse(page)).status_code == 302
    client.force_login(UserFactory())
    assert client.get(reverse(page)).status_code == 302
    client.force_login(UserFactory(is_staff=True))
    assert client.get(reverse(page)).status_code == 403
