"""Routes that change a running pipeline. Each request needs the token.

The answer is a JSON object: the result with status 200; ``errors`` with status 409 if nothing is changed, and 401 without the token.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aiorepl.errors import AioreplError, printable
from aiorepl.monitoring.pages import HEADERS
from aiorepl.secret import Secret

Action = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Called with ``name`` of the path, or an empty text if the path has none; returns the answer."""


def control_routes(actions: Mapping[str, Action], token: Secret[str]) -> list[Route]:
    """Return the routes for ``status_app``.

    :param actions: by path.
    :param token: clients send it as ``Authorization: Bearer …``.
    """
    return [Route(path, _guarded(action, token), methods=["POST"]) for path, action in actions.items()]


def _guarded(action: Action, token: Secret[str]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        expected = f"Bearer {token.reveal()}".encode()
        # Starlette decodes headers as Latin-1.
        given = request.headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(given, expected):
            headers = {**HEADERS, "WWW-Authenticate": "Bearer"}
            return JSONResponse({"errors": ["the token is missing or wrong"]}, 401, headers=headers)
        try:
            result = await action(request.path_params.get("name", ""))
        except AioreplError as error:
            errors = [printable(line) for line in str(error).splitlines()]
            return JSONResponse({"errors": errors}, 409, headers=HEADERS)
        return JSONResponse(dict(result), headers=HEADERS)

    return answer
