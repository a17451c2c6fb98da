"""The application: which path gives what. The files of the front end are named here one by one."""

from collections.abc import Callable
from importlib import resources

from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tidelake import errors
from tidelake.exporters import prometheus
from tidelake.lake.api.lake import Lake
from tidelake.web.api import Api, answering, downloading, streaming
from tidelake.web.guard import Guard

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/views.js": ("views.js", "text/javascript; charset=utf-8"),
    "/draw.js": ("draw.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def application(lake: Lake, version: str, token: str | None = None) -> ASGIApp:
    """The page of a lake, as an ASGI application."""
    api = Api(lake, version)
    reads = (
        *(api.lake, api.names, api.summaries, api.collection, api.rows, api.changes, api.history, api.log),
        api.views,
    )
    routes = [Route(f"/api/{read.__name__}", answering(read)) for read in reads]
    routes.append(Route("/api/events", streaming(api)))
    routes.append(Route("/api/maintain", answering(api.maintain, changes=True), methods=["POST"]))
    routes.append(Route("/api/download", downloading(api)))
    routes.append(Route("/metrics", _metrics(api)))
    routes += [Route(path, _file(*file)) for path, file in FILES.items()]
    return Guard(Starlette(routes=routes, exception_handlers={404: _nothing}), token)


def _file(name: str, media_type: str) -> Callable[[Request], object]:
    body = (resources.files("tidelake.web") / "static" / name).read_bytes()

    async def file(_request: Request) -> Response:
        return Response(body, media_type=media_type)

    return file


def _metrics(api: Api) -> Callable[[Request], object]:
    async def metrics(_request: Request) -> Response:
        try:
            return Response(await to_thread.run_sync(api.metrics), media_type=prometheus.CONTENT_TYPE)
        except errors.TidelakeError as error:
            return JSONResponse({"error": str(error)}, 503)

    return metrics


async def _nothing(_request: Request, _error: Exception) -> Response:
    return JSONResponse({"error": "there is nothing here"}, 404)
