"""Who gets an answer: the door of the page.

Without a token a program of this machine does, if it asks for this machine by its own name, and nothing says
that the request was forwarded: a page of another site gets none, even if DNS leads its name here, nor does
who comes through a proxy. All others need the token. Owns the headers that keep a browser from running or
sending what it should not.

INVARIANT: without the token, where one is needed, a request gets no answer but the form that asks for it.
The token is in no log, no address and no cookie.
"""

import hashlib
import hmac
import ipaddress
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidelake.exporters.loopback import host_of, is_loopback

TOKEN_MIN = 16
# What proxies add to a request. One that speaks HTTP/1.0 to what is behind it, as some do, adds nothing.
_FORWARDING = frozenset(
    {"forwarded", "via", "true-client-ip", "client-ip", "x-real-ip", "x-client-ip", "x-cluster-client-ip"}
)
_FORWARDING_PREFIXES = ("x-forwarded", "x-original-", "x-envoy-", "x-amzn-", "x-azure-", "cf-", "fastly-")
_GIVE = "start it with --token-file FILE, or with TIDELAKE_TOKEN"
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
        why = why_not_local(request) if self._token is None else None
        if why is not None:
            return JSONResponse({"error": why}, 421)
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


def why_not_local(request: Request) -> str | None:
    """Why a request does not certainly come from this machine; None: it does.

    A peer without an IP address, such as that of a Unix socket, is of this machine.
    """
    peer = "" if request.client is None else request.client.host
    if _is_address(peer) and not is_loopback(peer):
        return "this server answers only its own machine without a token"
    if request.scope["http_version"] == "1.0" or any(map(_is_forwarding, request.headers)):
        return f"this request was forwarded, and a server behind a proxy needs a token: {_GIVE}"
    if not is_loopback(host_of(request.headers.get("host", ""))):
        return "ask for this server by the name localhost"
    return None


def _is_forwarding(header: str) -> bool:
    return header in _FORWARDING or header.startswith(_FORWARDING_PREFIXES)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_own(request: Request) -> bool:
    """Whether a request that may change something comes from a page of this server, or from no page."""
    origin = request.headers.get("origin")
    if origin is None:
        return request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    return urlsplit(origin).netloc == request.headers.get("host")
