"""Who may see the page: those who were given its address. Users of this machine and pages in a browser reach the port, too."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_REFUSAL = (
    "<!doctype html><meta charset=utf-8><title>softq explore</title>"
    "<p>This page opens by the address that <code>softq explore</code> has printed, with its key."
)


class Key:
    """A random key for the address that is printed, and a second one that opens the page once.

    The second is for the command that opens the browser, whose arguments other users may see while it runs.

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
    """ASGI middleware: an address with the key sets a cookie, all else needs the cookie and comes from no page of another origin."""

    def __init__(self, app: ASGIApp, key: Key, port: int) -> None:
        self.app, self.key = app, key
        self.cookie = f"softq-explore-{port}"  # browsers keep one set of cookies for all ports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] in ("http", "websocket"):
            answer = self._answer(HTTPConnection(scope))
            if answer is not None and scope["type"] == "websocket":
                await send({"type": "websocket.close"})  # before it was accepted, which is a 403
                return
            if answer is not None:
                answer.headers["Cache-Control"] = "no-store"
                await answer(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _answer(self, request: HTTPConnection) -> Response | None:
        """What to say to a request that is not passed on."""
        origin, host = request.headers.get("origin"), request.headers.get("host", "")
        if origin is not None and origin != f"http://{host}":  # the host is looked at elsewhere
            return HTMLResponse(_REFUSAL, 403)
        given = request.query_params.get("key")
        if request.url.path == "/" and given is not None and self.key.opens(given):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(self.cookie, self.key.lasting, httponly=True, samesite="lax")
            return answer
        return (
            None
            if _same(request.cookies.get(self.cookie, ""), self.key.lasting)
            else HTMLResponse(_REFUSAL, 403)
        )


def _same(given: str, expected: str) -> bool:
    """Compare in a time that does not tell how much of it is right."""
    return secrets.compare_digest(given.encode(errors="replace"), expected.encode())
