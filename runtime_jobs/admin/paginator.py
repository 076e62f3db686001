"""Page numbers for tables of millions of rows."""

from functools import cached_property
from typing import Any

from django.core.paginator import Page, Paginator

from runtime_jobs.queries.lists import COUNT_CAP


class CappedPaginator(Paginator):
    """Counts no further than COUNT_CAP: a COUNT(*) over a long history takes seconds, and nobody turns to page two thousand."""

    object_list: Any

    @cached_property
    def _counted(self) -> int:
        return int(self.object_list[: COUNT_CAP + 1].count())

    @cached_property
    def count(self) -> int:
        return min(self._counted, COUNT_CAP)

    @property
    def is_capped(self) -> bool:
        """Whether there are more than `count`."""
        return self._counted > COUNT_CAP

    def page(self, number: Any) -> Page:
        """A late page passes over thousands of keys in an index, and reads its own rows only."""
        number = self.validate_number(number)
        start = (number - 1) * self.per_page
        if start == 0:
            return super().page(number)
        keys = list(self.object_list.values_list("pk", flat=True)[start : min(start + self.per_page, self.count)])
        return Page(self.object_list.filter(pk__in=keys), number, self)
