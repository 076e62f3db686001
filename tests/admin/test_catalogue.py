"""The back office in Simplified Chinese: every word of ours is in the catalogue, translated, compiled, and on the page."""

import gettext
import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po
from django.conf import settings
from django.utils import translation

from tests.admin import people
from tests.admin.test_dashboard import busy_system
from tests.factories import JobFactory
from tests.support.processes import ROOT

FOLDER = Path("runtime_jobs/locale/zh_Hans/LC_MESSAGES")


def read(folder: Path) -> Catalog:
    with (folder / FOLDER / "django.po").open("rb") as file:
        return read_po(file, locale="zh_Hans")


def one(words):
    """The singular of what may have a plural."""
    return words if isinstance(words, str) else words[0]


def ids(catalogue):
    return {one(message.id) for message in catalogue if message.id}


def test_the_catalogue_has_every_word_of_the_sources_and_no_other(tmp_path):
    if not shutil.which("xgettext"):
        if os.environ.get("REQUIRE_ALL"):
            pytest.fail("GNU gettext is needed here: apt-get install -y gettext")
        pytest.skip("NOT RUN: finding the words of the sources needs GNU gettext (apt-get install -y gettext)")
    for name in ("config", "runtime_jobs", "runtime_protocol", "templates"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "target", "rust"))
    shutil.copy(ROOT / "manage.py", tmp_path)
    command = [sys.executable, "manage.py", "makemessages", "--locale", "zh_Hans", "--no-location", "--no-obsolete", "--no-wrap"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "EXTRA_APPS": "", "PYTHONPATH": ""}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert ids(read(tmp_path)) == ids(read(ROOT)), "run `make messages` and translate what is new"


def test_every_word_is_translated_with_the_same_places_for_values():
    catalogue = read(ROOT)
    assert len(ids(catalogue)) > 400
    places = re.compile(r"%\(\w+\)[sd]|\{\w+\}|`[^`]*`")
    for message in catalogue:
        if message.id:
            assert one(message.string), message.id
            assert not message.fuzzy, message.id
            assert sorted(places.findall(one(message.string))) == sorted(places.findall(one(message.id))), message.id


def test_what_is_compiled_is_what_was_translated():
    """Compiled by `make messages` and kept, so that nothing but Python is needed to run it."""
    with (ROOT / FOLDER / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    catalogue = read(ROOT)
    for message in catalogue:
        if message.id:
            words = one(message.id)
            found = compiled.gettext(words) if isinstance(message.id, str) else compiled.ngettext(words, message.id[1], 1)
            assert found == one(message.string), message.id
    kept = {one(key) if not isinstance(key, str) else key for key in compiled._catalog if key}  # type: ignore[attr-defined]
    assert kept == ids(catalogue)


@pytest.mark.django_db
def test_no_page_shows_an_english_sentence_that_has_a_translation(client):
    busy_system()
    job = JobFactory()
    client.force_login(people.root())
    client.cookies[settings.LANGUAGE_COOKIE_NAME] = "zh-hans"
    # A word alone may be a value, such as a lane's name.
    sentences = [words for words in ids(read(ROOT)) if len(words) >= 10 and " " in words and "%" not in words]
    jobs = f"{people.LIST}{job.pk}"
    base = "/admin/runtime_jobs"
    urls = [
        "/admin/", people.LIST, f"{jobs}/change/", f"{jobs}/cancel/", f"{base}/aimodelcredential/", f"{base}/aimodelcredential/add/",
        f"{base}/runtimeservicetoken/", f"{base}/runtimeservicetoken/add/", f"{base}/aiusagelog/", f"{base}/claimgate/add/",
        f"{base}/runtimeinstance/", f"{base}/aieventdelivery/", f"{base}/aistaffevent/", f"{base}/aijobevent/", f"{base}/airuntimeresult/",
    ]  # fmt: skip
    try:
        for url in urls:
            answer = client.get(url)
            assert answer.status_code == 200, url
            text = html.unescape(answer.content.decode())
            assert 'lang="zh-hans"' in text
            shown = [sentence for sentence in sentences if re.search(rf"[>\"']\s*{re.escape(sentence)}\s*[<\"']", text)]
            assert shown == [], url
    finally:
        translation.activate(settings.LANGUAGE_CODE)
