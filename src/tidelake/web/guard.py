"""Who gets an answer: the door of the page.

On the loopback interface any program of this machine does, if it asks for this machine by its own name: a
page of another site does not, even if DNS leads its name here. Elsewhere a request needs the token. Owns the
headers that keep a browser from running or sending what it should not.

INVARIANT: without the token, where one is needed, a request gets no answer but the form that asks for it.
The token is in no log, no address and no cookie.
"""

import hashlib
import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
TOKEN_MIN = 16
_COOKIE = "tidelake"
_FORM_BYTES_MAX = 4096
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_LOGIN = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>Tidelake</title>
<form method="post" action="/login">
<label>Token <input type="password" name="token" autofocus required></label>
<button>Open</button></form></html>"""


class Guard:
    """Lets requests through to an application, or answers them itself.

    Args:
        app: answers the requests that are let through.
        token: needed for every answer; None: none is, and the `Host` must be this machine's own name.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = None if token is None else token.encode()
        # A cookie is worth nothing to another process, nor after this one.
        salt = secrets.token_bytes(32)
        self._cookie = "" if token is None else hmac.new(salt, token.encode(), hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, with the headers that every answer has."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # No part of the page uses WebSockets.
            await send({"type": "websocket.close", "code": 1008})
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = await self._refusal(Request(scope, receive))
        await (answer or self._app)(scope, receive, sent)

    async def _refusal(self, request: Request) -> Response | None:
        """The answer to a request that goes no further; None: it may."""
        if self._token is None and host_of(request.headers.get("host", "")) not in LOOPBACK:
            return JSONResponse({"error": "ask for this server by the name localhost"}, 421)
        if request.method not in ("GET", "HEAD") and not is_own(request):
            return JSONResponse({"error": "a change must come from the page itself"}, 403)
        if self._token is None:
            return None
        if request.method == "POST" and request.url.path == "/login":
            return await self._login(request)
        return None if self._is_known(request) else HTMLResponse(_LOGIN, 401)

    def _is_known(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._is_token(given.encode("latin-1", "replace"))
        try:
            found = SimpleCookie(request.headers.get("cookie", "")).get(_COOKIE)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self._cookie.encode())

    def _is_token(self, given: bytes) -> bool:
        return self._token is not None and hmac.compare_digest(given, self._token)

    async def _login(self, request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _FORM_BYTES_MAX:
                return HTMLResponse(_LOGIN, 401)
        given = parse_qs(body.decode("latin-1")).get("token", [""])[0]
        if not self._is_token(given.encode()):
            return HTMLResponse(_LOGIN, 401)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(_COOKIE, self._cookie, httponly=True, samesite="strict")
        return answer


def host_of(header: str) -> str:
    """The name in a `Host` header, without port and brackets; empty if it is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def is_own(request: Request) -> bool:
    """Whether a request that may change something comes from a page of this server, or from no page."""
    origin = request.headers.get("origin")
    if origin is None:
        return request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    return urlsplit(origin).netloc == request.headers.get("host")
