"""The same framework as `serving.app`, with the same server and limits, answering a constant: what HTTP alone costs."""

import sys
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tandemrank.serving import run

ANSWER = (
    b'{"impression_id":"69a43c658de835eb66639e49d54f6ad1","items":[212,202,284,166,325,9,352,349,316,183],'
    b'"policy":"ba8bb1cd49640c11","source":"policy","logged":true,"unknown":[]}'
)


async def rank(request: Request) -> Response:
    """Reads the question and answers the same to all."""
    await request.body()
    return Response(ANSWER, media_type="application/json")


def main() -> None:
    """Serves it, and says where."""
    app: Any = Starlette(routes=[Route("/rank", rank, methods=["POST"])])

    def listening(port: int) -> None:
        print(f"tandemrank: http://127.0.0.1:{port} answers with a constant", file=sys.stderr, flush=True)

    run.server(app, run.Address(port=0), listening=listening).run()


if __name__ == "__main__":
    main()
