"""The protocol as pages of the admin: PROTOCOL.md to read, openapi.yaml to take away. For staff who may see the service tokens."""

import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from django.contrib import admin
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import slugify
from django.utils.translation import gettext as _
from markdown_it import MarkdownIt
from markdown_it.token import Token

from runtime_protocol.files import CONTRACT, DOCUMENT

PERMISSION = "runtime_jobs.view_runtimeservicetoken"

# Marks between which a test keeps the document true.
_COMMENTS = re.compile(r"<!--.*?-->\n?", re.DOTALL)


@dataclass(frozen=True)
class Heading:
    level: int
    anchor: str
    text: str


@dataclass(frozen=True)
class Document:
    html: SafeString
    headings: tuple[Heading, ...]


def may_read(user: AbstractBaseUser | AnonymousUser) -> bool:
    return bool(user.is_active and getattr(user, "is_staff", False) and getattr(user, "has_perm", lambda _: False)(PERMISSION))


def document(request: HttpRequest) -> HttpResponse:
    """PROTOCOL.md, with its headings as a list of contents."""
    _must_read(request)
    context: dict[str, Any] = {**admin.site.each_context(request), "title": _("Runtime protocol"), "document": _rendered()}
    return TemplateResponse(request, "admin/runtime_protocol.html", context)


def contract(request: HttpRequest) -> HttpResponse:
    """openapi.yaml, as runtimes get it."""
    _must_read(request)
    return HttpResponse(
        CONTRACT.read_bytes(), content_type="application/yaml", headers={"Content-Disposition": 'attachment; filename="openapi.yaml"'}
    )


def _must_read(request: HttpRequest) -> None:
    if not may_read(request.user):
        raise PermissionDenied


@cache
def _rendered() -> Document:
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(_COMMENTS.sub("", DOCUMENT.read_text(encoding="utf-8")))
    headings = tuple(_anchored(tokens))
    _without_empty_headers(tokens)
    # What may scroll sideways can be reached by the keyboard.
    html = markdown.renderer.render(tokens, markdown.options, {})
    html = html.replace("<pre>", '<pre tabindex="0">').replace("<table>", '<table tabindex="0">')
    return Document(mark_safe(html), headings)  # noqa: S308 - our own file, and its HTML is escaped


def _without_empty_headers(tokens: list[Token]) -> None:
    """A header cell without a word is a cell: a screen reader would announce a header that says nothing."""
    for opening, inline, closing in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if opening.type == "th_open" and not inline.content:
            opening.tag = closing.tag = "td"


def _anchored(tokens: list[Token]) -> list[Heading]:
    """Give each heading below the title an id to link to."""
    found = []
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open" and opening.tag in ("h2", "h3"):
            heading = Heading(int(opening.tag[1]), slugify(inline.content), inline.content)
            opening.attrSet("id", heading.anchor)
            found.append(heading)
    return found
