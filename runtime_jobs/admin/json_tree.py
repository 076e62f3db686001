"""JSON as a tree that folds without a script, numbers as they are stored, cut where it is too large for a page."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.utils.html import conditional_escape, format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

MOST_NODES = 2_000
MOST_CHARACTERS = 200_000
_LONG = 2_000  # characters of one text
_DEEP = 100


@dataclass(frozen=True)
class Tree:
    html: SafeString
    is_cut: bool


class _Budget:
    def __init__(self) -> None:
        self.nodes = MOST_NODES
        self.characters = MOST_CHARACTERS
        self.is_cut = False

    def take(self, characters: int) -> bool:
        if self.nodes <= 0 or self.characters <= 0:
            self.is_cut = True
            return False
        self.nodes -= 1
        self.characters -= characters
        return True


def tree(value: Any) -> Tree:
    """`value` is what json.loads gives: integers of any size stay exact."""
    budget = _Budget()
    html = _node(value, budget, 0)
    return Tree(html, budget.is_cut)


def _node(value: Any, budget: _Budget, depth: int) -> SafeString:
    if not isinstance(value, dict | list):
        return _leaf(value, budget)
    if depth >= _DEEP:
        budget.is_cut = True
        return format_html("…")
    if not value:
        budget.take(2)
        return format_html('<span class="json-empty">{}</span>', "{}" if isinstance(value, dict) else "[]")
    items = list(_items(value, budget, depth))
    count = len(value)
    if isinstance(value, dict):
        size = ngettext("%(count)s member", "%(count)s members", count) % {"count": f"{count:,}"}
    else:
        size = ngettext("%(count)s item", "%(count)s items", count) % {"count": f"{count:,}"}
    inside = format_html_join("", '<li><span class="json-name">{}</span> {}</li>', items)
    if len(items) < count:
        inside += format_html('<li class="json-cut">{}</li>', _("… cut here"))
    if depth == 0:
        return format_html('<ul class="json">{}</ul>', inside)
    return format_html('<details class="json-node"><summary>{}</summary><ul>{}</ul></details>', size, inside)


def _items(value: Any, budget: _Budget, depth: int) -> Iterator[tuple[str, SafeString]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for name, member in pairs:
        if not budget.take(len(str(name))):
            return
        yield str(name), _node(member, budget, depth + 1)


def _leaf(value: Any, budget: _Budget) -> SafeString:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) > _LONG and isinstance(value, str):
        budget.is_cut = True
        text = f"{text[:_LONG]}…"
    budget.take(len(text))
    kind = "text" if isinstance(value, str) else "literal" if value is None or isinstance(value, bool) else "number"
    return format_html('<span class="json-{}">{}</span>', kind, conditional_escape(text))
