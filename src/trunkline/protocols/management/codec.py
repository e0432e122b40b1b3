"""JSON over HTTP: bodies in and out, errors in RabbitMQ's form, and lists that are filtered, sorted and given page by page.

A list takes the parameters that RabbitMQ's does: `page` and `page_size` (without `page` it is the whole list), `name` with
`use_regex`, `sort` with `sort_reverse`, `columns`. Patterns are matched without backtracking (`trunkline.pattern`). Filtering and
paging look at names; documents are made for the page alone, unless the list is sorted by something else than its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import parse_qs

from trunkline.pattern import InvalidPattern, NamePattern
from trunkline.protocols.http.message import HttpError, Request, Response

Json = dict[str, object]
T = TypeVar("T")

MAX_PAGE_SIZE: Final = 500
_PAGE_SIZE: Final = 100
_MAX_DEPTH_COLUMNS: Final = 8
_JSON_TYPE: Final = "application/json"
_ERRORS: Final = {
    400: "bad_request",
    401: "not_authorized",
    403: "not_authorised",
    404: "Object Not Found",
    405: "method_not_allowed",
    409: "conflict",
    415: "unsupported_media_type",
}


def json_response(value: object, status: int = 200, headers: list[tuple[str, str]] | None = None) -> Response:
    body = json.dumps(value, separators=(",", ":"), default=str).encode()
    return Response(status, body, _JSON_TYPE, headers or [])


def no_content(status: int = 204) -> Response:
    return Response(status)


def error_response(status: int, reason: str, headers: list[tuple[str, str]] | None = None) -> Response:
    return json_response({"error": _ERRORS.get(status, "error"), "reason": reason}, status, headers)


def json_body(request: Request) -> Json:
    """The object that was sent; nothing at all is an empty one."""
    if not request.body.strip():
        return {}
    try:
        value = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise HttpError(400, "body is not a JSON object")
    return value


def parameters_of(request: Request) -> dict[str, str]:
    """The parameters of the query; of one that is given twice the last."""
    try:
        found = parse_qs(request.query, keep_blank_values=True, max_num_fields=100)
    except ValueError as error:
        raise HttpError(400, str(error)) from None
    return {name: values[-1] for name, values in found.items()}


def text_of(document: Json, name: str, default: str | None = None) -> str:
    value = document.get(name, default)
    if not isinstance(value, str):
        raise HttpError(400, f"{name} must be text")
    return value


def number_of(value: object, name: str, default: int | None = None, *, most: int = 2**63 - 1, least: int = 0) -> int:
    if value is None and default is not None:
        return default
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if isinstance(value, bool) or not least <= number <= most:
        raise HttpError(400, f"{name} must be a whole number from {least} to {most}")
    return number


def flag_of(value: object, default: bool = False) -> bool:
    if value is None:
        return default
    return value is True or str(value).lower() in ("true", "1", "yes")


# -- lists ---------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Listing:
    """What somebody asks of a list."""

    page: int | None
    page_size: int
    pattern: Callable[[str], bool] | None
    sort: str
    reverse: bool
    columns: list[list[str]]

    @classmethod
    def asked(cls, request: Request) -> Listing:
        given = parameters_of(request)
        name = given.get("name", "")
        pattern: Callable[[str], bool] | None = None
        if name:
            if flag_of(given.get("use_regex")):
                try:
                    pattern = NamePattern(name, anywhere=True).matches
                except InvalidPattern as error:
                    raise HttpError(400, f"name is no pattern: {error}") from None
            else:
                wanted = name.lower()
                pattern = lambda text: wanted in text.lower()  # noqa: E731
        columns = [each.split(".")[:_MAX_DEPTH_COLUMNS] for each in given.get("columns", "").split(",") if each]
        return cls(
            number_of(given["page"], "page", least=1) if "page" in given else None,
            number_of(given.get("page_size"), "page_size", _PAGE_SIZE, least=1, most=MAX_PAGE_SIZE),
            pattern,
            given.get("sort", ""),
            flag_of(given.get("sort_reverse")),
            columns,
        )

    def respond(
        self, items: Sequence[T], name_of: Callable[[T], str], document: Callable[[T], Json], *, named: str = "name"
    ) -> Response:
        """`items` as a list or as one page of it. `named` is the column that `name_of` says."""
        try:
            found = [each for each in items if self.pattern is None or self.pattern(name_of(each))]
        except InvalidPattern as error:
            raise HttpError(400, str(error)) from None
        documents: list[Json] | None = None
        if self.sort and self.sort != named:
            documents = sorted([document(each) for each in found], key=lambda each: _sort_key(each, self.sort))
            if self.reverse:
                documents.reverse()
        elif self.sort or self.page is not None:
            found = sorted(found, key=name_of, reverse=self.reverse)
        first, last = 0, len(found)
        if self.page is not None:
            first = (self.page - 1) * self.page_size
            last = first + self.page_size
            if self.page > 1 and first >= len(found):
                raise HttpError(400, "page_out_of_range")
        part = documents[first:last] if documents is not None else [document(each) for each in found[first:last]]
        if self.columns:
            part = [_chosen(each, self.columns) for each in part]
        if self.page is None:
            return json_response(part)
        pages = max(1, -(-len(found) // self.page_size))
        return json_response(
            {
                "filtered_count": len(found),
                "item_count": len(part),
                "items": part,
                "page": self.page,
                "page_count": pages,
                "page_size": self.page_size,
                "total_count": len(items),
            }
        )


def _sort_key(document: Json, column: str) -> tuple[int, float, str]:
    value: object = document
    for part in column.split(".")[:_MAX_DEPTH_COLUMNS]:
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, int | float):
        return 1, float(value), ""
    return 2, 0.0, str(value)


def _chosen(document: Json, columns: list[list[str]]) -> Json:
    chosen: Json = {}
    for path in columns:
        source: object = document
        for part in path:
            source = source.get(part) if isinstance(source, dict) else None
        if source is None:
            continue
        target = chosen
        for part in path[:-1]:
            inner = target.setdefault(part, {})
            if not isinstance(inner, dict):
                break
            target = inner
        else:
            target[path[-1]] = source
    return chosen
