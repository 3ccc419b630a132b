"""Access to the page for those who were given its address.

Other users of this machine and other pages in a browser reach the port, too.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.websockets import WebSocketClose

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_REFUSAL = (
    "<!doctype html><meta charset=utf-8><title>softq explore</title>"
    "<p>This page opens by the address that <code>softq explore</code> has printed, with its key."
)
_HEADERS = {"Cache-Control": "no-store"}


class Key:
    """A random key for the address that is printed, and a second one that opens the page once.

    The second is for the command that opens the browser: other users may see its arguments.

    >>> key = Key()
    >>> key.opens(key.lasting), key.opens(key.lasting), key.opens("guess")
    (True, True, False)
    >>> once = key.once
    >>> key.opens(once), key.opens(once)
    (True, False)

    """

    def __init__(self) -> None:
        self.lasting, self.once = secrets.token_urlsafe(), secrets.token_urlsafe()

    def opens(self, given: str) -> bool:
        """Whether this is one of the keys."""
        if _same(given, self.once):
            self.once = secrets.token_urlsafe()  # known to nobody
            return True
        return _same(given, self.lasting)


class Gate:
    """ASGI middleware that lets in who has the key or the cookie, and no page of another origin.

    An address with the key sets the cookie; all other requests need it.
    """

    def __init__(self, app: ASGIApp, key: Key, port: int) -> None:
        self.app, self.key = app, key
        self.cookie = f"softq-explore-{port}"  # browsers keep one set of cookies for all ports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request or pass it on."""
        is_request = scope["type"] in ("http", "websocket")
        answer = self._answer(HTTPConnection(scope)) if is_request else self.app
        await answer(scope, receive, send)

    def _answer(self, request: HTTPConnection) -> ASGIApp:
        """The page for those who may see it, the cookie for a key, a refusal otherwise."""
        own = f"http://{request.headers.get('host')}"  # the host is checked elsewhere
        is_own = request.headers.get("origin", own) == own
        if (
            is_own
            and request.url.path == "/"
            and self.key.opens(request.query_params.get("key", ""))
        ):
            answer = RedirectResponse("/", 303, _HEADERS)
            answer.set_cookie(self.cookie, self.key.lasting, httponly=True, samesite="lax")
            return answer
        if is_own and _same(request.cookies.get(self.cookie, ""), self.key.lasting):
            return self.app
        # Closed before it was accepted, a socket answers 403 as well.
        is_socket = request.scope["type"] == "websocket"
        return WebSocketClose() if is_socket else HTMLResponse(_REFUSAL, 403, _HEADERS)


def _same(given: str, expected: str) -> bool:
    """Compare in constant time."""
    return secrets.compare_digest(given.encode(errors="replace"), expected.encode())
