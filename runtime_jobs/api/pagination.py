"""Pages along the primary key: newest first, the same cost on every page, no COUNT, and stable while new jobs arrive."""

from typing import Any
from uuid import UUID

from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request


class NewestFirst(CursorPagination):
    ordering = "-id"
    page_size = 50
    max_page_size = 200
    page_size_query_param = "pageSize"
    page_size_query_description = "Jobs per page."
    cursor_query_description = "Where the page begins: taken from `next` or `previous` of another page."

    def get_page_size(self, request: Request) -> int:
        given = request.query_params.get("pageSize")
        if given is None:
            return self.page_size
        # DRF falls back to the default in silence.
        if not (given.isascii() and given.isdigit() and len(given) <= 9 and 1 <= int(given) <= self.max_page_size):
            raise ValidationError({"pageSize": [f"A whole number from 1 to {self.max_page_size} is needed."]})
        return int(given)

    def decode_cursor(self, request: Request) -> Cursor | None:
        try:
            cursor = super().decode_cursor(request)
            # DRF hands the position to the database as it came.
            if cursor is not None and cursor.position is not None:
                UUID(str(cursor.position))
        except (NotFound, ValueError):
            raise ValidationError({"cursor": ["This is not a cursor of this list. Take it from `next` or `previous`."]}) from None
        return cursor

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        parameters = super().get_schema_operation_parameters(view)
        for parameter in parameters:
            if parameter["name"] == self.page_size_query_param:
                parameter["schema"] |= {"minimum": 1, "maximum": self.max_page_size, "default": self.page_size}
        return parameters

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        page = super().get_paginated_response_schema(schema)
        page["required"] = ["next", "previous", "results"]
        for name in ("next", "previous"):
            page["properties"][name] = {"type": ["string", "null"], "format": "uri"}
        return page
