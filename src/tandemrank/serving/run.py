"""Starts uvicorn around an application, on one address, with every limit set; ends in order when it is told to.

Its connections have limits that uvicorn's do not: the size of a head, and the time in which a request must arrive.
"""

import asyncio
import gc
import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tandemrank.errors import ConfigError
from tandemrank.serving.access import Limits, is_loopback

SWITCH = 0.0005  # seconds after which a thread that makes segments lets the answers go on


@dataclass(frozen=True)
class Address:
    """Where to listen, and the token; port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 8080
    token: str = ""
    limits: Limits = field(default_factory=Limits)


def read_token(path: Path | None, host: str) -> str:
    """The token of a file or of TANDEMRANK_TOKEN; on the loopback a new one where there is none."""
    if path is not None:
        try:
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the token from {path}: {error}.") from error
        if len(token) < 16:
            raise ConfigError(f"{path} has a token of {len(token)} characters; 16 or more are needed.")
        return token
    token = os.environ.get("TANDEMRANK_TOKEN", "")
    return token or (secrets.token_urlsafe(24) if is_loopback(host) else "")


class BoundedConnection(HttpToolsProtocol):
    """Counts the bytes of a head, and knows since when it waits for the rest of a request."""

    limits = Limits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection that says nothing is one that waits."""
        super().connection_made(transport)
        self.since: float | None = self.loop.time()
        self.received = self.head = 0

    def data_received(self, data: bytes) -> None:
        """Ends the connection where a request does not end."""
        if self.since is None:
            self.since, self.received = self.loop.time(), 0
        self.received += len(data)
        super().data_received(data)
        if self.received > self.limits.head + 2 * self.limits.body and self.since is not None:
            self.transport.close()

    def on_message_begin(self) -> None:
        """A new head."""
        super().on_message_begin()
        self.head = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Refuses a head that is too long, as anything that is no HTTP."""
        super().on_header(name, value)
        self.head += len(name) + len(value)
        if self.head > self.limits.head:
            raise ValueError("the head of the request is too long")

    def on_headers_complete(self) -> None:
        """Refuses versions that have no heads, or other ones."""
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            raise ValueError("expected HTTP/1.1")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is whole: from here on it is ours to be quick."""
        super().on_message_complete()
        self.since = None


def sweep(connections: set[Any], now: float, seconds: float) -> int:
    """Ends the connections whose request has not arrived in time; returns how many."""
    late = [c for c in list(connections) if getattr(c, "since", None) is not None and now - c.since > seconds]
    for connection in late:
        connection.transport.close()
    return len(late)


class Running(uvicorn.Server):
    """A server that tells its port when it listens, and sweeps connections that wait too long."""

    def __init__(self, config: uvicorn.Config, limits: Limits, listening: Callable[[int], None]) -> None:
        super().__init__(config)
        self.limits, self.listening = limits, listening

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Listens, and says so."""
        await super().startup(sockets)  # type: ignore[arg-type]
        gc.collect()
        gc.freeze()  # what is there now stays: no answer waits until it has been looked through for garbage
        if self.started and self.servers:
            self.listening(self.servers[0].sockets[0].getsockname()[1])

    async def shutdown(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Ends in order; having been told to is no failure, so the signal is not raised once more."""
        await super().shutdown(sockets)  # type: ignore[arg-type]
        self._captured_signals.clear()

    async def on_tick(self, counter: int) -> bool:
        """Every tenth of a second."""
        if counter % 5 == 0:
            sweep(self.server_state.connections, asyncio.get_running_loop().time(), self.limits.seconds)
        return await super().on_tick(counter)


def server(app: Any, address: Address, *, listening: Callable[[int], None] = lambda port: None) -> Running:
    """A server of an ASGI application that is ready to run."""
    sys.setswitchinterval(SWITCH)

    class Connection(BoundedConnection):
        limits = address.limits

    config = uvicorn.Config(
        app, host=address.host, port=address.port, http=Connection, ws="none", loop="uvloop",
        log_level="warning", access_log=False, server_header=False, date_header=False, lifespan="on",
        limit_concurrency=address.limits.connections, timeout_keep_alive=int(address.limits.idle),
        timeout_graceful_shutdown=10, backlog=256,
    )  # fmt: skip
    return Running(config, address.limits, listening)
