"""Starts uvicorn around a service, on one address, with every limit set; ends in order when it is told to."""

import asyncio
import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn

from tandemrank.errors import ConfigError
from tandemrank.serving.app import SEAL, TICK, Context, application
from tandemrank.serving.limits import Access, Limits, is_loopback
from tandemrank.serving.protocol import BoundedConnection, sweep
from tandemrank.serving.service import Service, Settings

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


class Running(uvicorn.Server):
    """A server that tells its port when it listens, and sweeps connections that wait too long."""

    def __init__(self, config: uvicorn.Config, limits: Limits, listening: Callable[[int], None]) -> None:
        super().__init__(config)
        self.limits, self.listening = limits, listening

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Listens, and says so."""
        await super().startup(sockets)  # type: ignore[arg-type]
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


def server(
    settings: Settings,
    address: Address,
    *,
    listening: Callable[[int], None] = lambda port: None,
    tick: float = TICK,
    seal: float = SEAL,
) -> Running:
    """A server that is ready to run: the pair is loaded and warm."""
    access = Access(address.host, address.token)
    context = Context(Service(settings), access, address.limits, tick=tick, seal=seal)
    sys.setswitchinterval(SWITCH)

    class Connection(BoundedConnection):
        limits = address.limits

    config = uvicorn.Config(
        application(context), host=address.host, port=address.port, http=Connection, ws="none", loop="uvloop",
        log_level="warning", access_log=False, server_header=False, date_header=False, lifespan="on",
        limit_concurrency=address.limits.connections, timeout_keep_alive=int(address.limits.idle),
        timeout_graceful_shutdown=10, backlog=256,
    )  # fmt: skip
    return Running(config, address.limits, listening)
