"""From a method and a URL to a row of the table; the table against its handlers and its document."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.server.http.http_memory import error_of

from avow.server.http.dispatch import Call, Dispatcher, media_type, negotiate
from avow.server.http.error_reply import Reply
from avow.server.http.openapi import document
from avow.server.http.routes import ROUTES
from avow.server.http.schemas import EnqueueParameters, ReadParameters
from avow.server.http.server import HANDLERS


def find(method: str, url: str) -> Call | Reply:
    return Dispatcher().find(method.encode(), url.encode())


def refused(method: str, url: str) -> tuple[int, str]:
    reply = find(method, url)
    assert isinstance(reply, Reply)
    return reply.status, error_of(reply.body)["message"]


def test_every_route_has_a_handler_and_every_handler_a_route() -> None:
    assert sorted(route.operation for route in ROUTES) == sorted(HANDLERS)


def test_a_url_becomes_typed_parameters() -> None:
    call = find("POST", "/v1/queues/orders/messages?lane=2&expected=0&timeout_s=1.5&redirect=true")
    assert isinstance(call, Call)
    assert call.parameters == EnqueueParameters(queue="orders", lane=2, expected=0, timeout_s=1.5, redirect=True)


def test_names_are_unquoted_after_the_path_is_split() -> None:
    call = find("GET", "/v1/queues/a%2Fb%20%C3%A9/messages")
    assert isinstance(call, Call)
    assert call.parameters.queue == "a/b é"


def test_a_parameter_without_a_value_is_ignored() -> None:
    call = find("GET", "/v1/queues/q/messages?lane=&after=&at_least=")
    assert isinstance(call, Call)
    assert call.parameters == ReadParameters(queue="q")


def test_head_is_routed_as_get_and_a_full_url_by_its_path() -> None:
    assert isinstance(find("HEAD", "/healthz"), Call)
    assert isinstance(find("GET", "http://elsewhere:80/healthz"), Call)


def test_a_repeated_url_is_routed_without_parsing_it() -> None:
    dispatcher = Dispatcher()
    first = dispatcher.find(b"GET", b"/v1/queues/q")
    assert dispatcher.find(b"GET", b"/v1/queues/q") is first
    for number in range(5000):
        dispatcher.find(b"GET", b"/v1/queues/%d" % number)
    assert len(dispatcher._known) <= 4096


@pytest.mark.parametrize(
    "name", ["g", "a%2Fb", "%C3%A9", "", "a?x=1", "?", "a#b", "a?timeout_s=2", "x" * 600, "é", "a//b", "%", "%FF"]
)
@pytest.mark.parametrize("path", ["/v1/pledges/{}/prepare", "/v1/pledges/{}/submit", "http://x/v1/pledges/{}/submit"])
def test_a_pledge_is_routed_the_same_after_others_were_cached(path: str, name: str) -> None:
    url = path.format(name).encode("latin-1")
    practised = Dispatcher()
    for before in (b"/v1/pledges/other/prepare", b"/v1/pledges/other/submit"):
        assert isinstance(practised.find(b"POST", before), Call)
    for method in (b"POST", b"GET", b"HEAD"):
        assert practised.find(method, url) == Dispatcher().find(method, url)


def test_paths_that_differ_only_in_a_parameter_are_distinguished_by_the_method() -> None:
    found = [find("POST", "/v1/pledges/retry"), find("GET", "/v1/pledges/retry"), find("POST", "/v1/pledges/g/retry")]
    assert [call.route.operation for call in found if isinstance(call, Call)] == [
        "retry_pledges",
        "show_pledge",
        "retry_pledge",
    ]
    braces = find("GET", "/v1/pledges/{}")
    assert isinstance(braces, Call)
    assert braces.parameters.gid == "{}"


@pytest.mark.parametrize("url", ["/", "/v1", "/v1/queues/", "/v1/queues/a/b/c", "//v1/queues", "*", "", "/v2/queues"])
def test_an_unknown_path_is_404(url: str) -> None:
    assert refused("GET", url)[0] == 404


def test_a_wrong_method_is_405_and_names_the_right_ones() -> None:
    reply = find("DELETE", "/v1/queues")
    assert isinstance(reply, Reply)
    assert (reply.status, reply.headers) == (405, b"allow: GET, HEAD, POST\r\n")


@pytest.mark.parametrize(
    "query",
    [
        "lane=x",
        "lane=-1",
        "lane=99999999999",
        "level=weak",
        "after=1&after=2",
        "nope=1",
        "max=0",
        "wait_s=31",
        "queue=b",
    ],
)
def test_a_wrong_parameter_is_400_and_is_named(query: str) -> None:
    status, message = refused("GET", f"/v1/queues/q/messages?{query}")
    assert status == 400
    assert query.partition("=")[0] in message


@pytest.mark.parametrize("url", ["/v1/queues/%ff", "/v1/queues/q/messages?lane=%ff", f"/v1/queues/{'x' * 201}"])
def test_a_name_that_cannot_be_read_is_400(url: str) -> None:
    assert refused("GET", url)[0] == 400


@given(st.binary(max_size=60))
def test_any_url_is_a_call_or_a_refusal(url: bytes) -> None:
    found = Dispatcher().find(b"GET", b"/v1/queues/q/messages?" + url)
    assert isinstance(found, Call) or found.status in (400, 404)
    assert isinstance(Dispatcher().find(b"POST", url), Reply | Call)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (b"*/*", "a/json"),
        (b"a/raw", "a/raw"),
        (b"A/RAW", "a/raw"),
        (b"a/*", "a/json"),
        (b"text/html, a/raw;q=0.9, */*;q=0.1", "a/raw"),
        (b"a/json;q=0.2, a/raw;q=0.3", "a/raw"),
        (b"text/html", None),
        (b"*/*, a/json;q=0", "a/raw"),
        (b"*/*;q=0", None),
        (b"a/json;q=nonsense", None),
        (b"", None),
    ],
)
def test_the_most_preferred_type_is_chosen(accept: bytes, chosen: str | None) -> None:
    assert negotiate(accept, ["a/json", "a/raw"]) == chosen


def test_a_type_is_compared_without_its_arguments() -> None:
    assert media_type(b" Application/JSON ; charset=utf-8") == "application/json"


# ---------------------------------------------------------------------- the document


DOCUMENT: dict[str, Any] = document(version="1")


def test_the_document_has_every_route_and_nothing_else() -> None:
    listed = {(method.upper(), path) for path, operations in DOCUMENT["paths"].items() for method in operations}
    assert listed == {(route.method, route.path) for route in ROUTES}


def test_every_reference_in_the_document_resolves() -> None:
    text = msgspec.json.encode(DOCUMENT).decode()
    names = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names
    assert names <= set(DOCUMENT["components"]["schemas"])


def test_parameters_in_the_document_have_the_bounds_they_are_checked_with() -> None:
    parameters = DOCUMENT["paths"]["/v1/queues/{queue}/messages"]["get"]["parameters"]
    by_name = {parameter["name"]: parameter for parameter in parameters}
    assert by_name["queue"]["in"] == "path"
    assert by_name["queue"]["required"]
    assert by_name["wait_s"]["schema"] == {"type": "number", "minimum": 0, "maximum": 30, "default": 0.0}
    assert by_name["lane"]["schema"] == {"type": "integer", "minimum": 0, "maximum": (1 << 32) - 1}


def test_every_operation_lists_the_statuses_of_its_errors() -> None:
    for route in ROUTES:
        responses = DOCUMENT["paths"][route.path][route.method.lower()]["responses"]
        wanted = {str(error.http_status) for error in route.errors} | {str(status) for status in route.statuses}
        assert wanted <= set(responses)
        assert ("401" in responses) == (route.right is not None or route.raw)  # a raw call asks for its token itself
