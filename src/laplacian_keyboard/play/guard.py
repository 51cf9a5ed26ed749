"""Who may talk to the server of `lk play`: the pages it has served.

A browser lets any page that is open in it connect to servers of this machine, and a WebSocket is
not held to the same-origin policy; it only says whose page asks. viser does not look at that.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio import server as websockets

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_own(hosts: Sequence[str], origins: Sequence[str], *, loopback: bool) -> bool:
    """Whether a request with these headers comes from a page of the server it goes to, or from no
    page at all.

    A server for this machine only is also asked for by such a name: another name that leads here
    is somebody else's, whose pages would then pass for ours.
    """
    try:
        names = [urlsplit(f"//{host}").hostname for host in hosts]
        places = [urlsplit(origin).netloc for origin in origins]
    except ValueError:  # no address
        return False
    if len(names) != 1 or (loopback and names[0] not in LOOPBACK):
        return False
    return all(place == hosts[0] for place in places)


@contextmanager
def own_pages_only(host: str) -> Iterator[None]:
    """Inside the block, WebSocket servers that start refuse requests that are not their own."""
    serve = websockets.serve

    def guarded(handler: Any, *arguments: Any, process_request: Any = None, **options: Any) -> Any:
        def check(connection: Any, request: Any) -> Any:
            asked, asking = (request.headers.get_all(name) for name in ("Host", "Origin"))
            if not is_own(asked, asking, loopback=host in LOOPBACK):
                return connection.respond(HTTPStatus.FORBIDDEN, "not a page of this server\n")
            return process_request(connection, request) if process_request else None

        return serve(handler, *arguments, process_request=check, **options)

    # viser has no setting for it.
    websockets.serve = guarded  # type: ignore[assignment]
    try:
        yield
    finally:
        websockets.serve = serve  # type: ignore[misc]
