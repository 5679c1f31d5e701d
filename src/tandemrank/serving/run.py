"""Listens on one address: what a stranger may ask for, and uvicorn with every limit set.

Sizes, times, hosts and the token are checked before anything else is done. Connections of uvicorn's have limits here that its
own do not: the size of a head, and the time in which a request must arrive.
"""

import asyncio
import gc
import hmac
import ipaddress
import os
import re
import secrets
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tandemrank._base.files import regular
from tandemrank.errors import ConfigError

# --- access -------------------------------------------------------------------------------------------------------------

JSON = b"application/json"
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

ONCE = (b"host", b"origin", b"authorization", b"content-type", b"content-length")


@dataclass(frozen=True)
class Limits:
    """The most of everything that a request may take."""

    body: int = 2**20  # bytes
    head: int = 2**15  # bytes of the request line and headers
    connections: int = 1000
    seconds: float = 10.0  # for a request to arrive
    idle: float = 30.0  # seconds of a connection without a request


class Refused(Exception):  # noqa: N818  # an answer, not a failure
    """A request that gets this status and these words."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status, self.words = status, words


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Address:
    """Where to listen, and who may do what there; port 0 takes a free one.

    On the loopback everybody may ask, elsewhere only who has the token; admin calls need it always.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    token: str = ""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Refuses to be reachable from elsewhere without a token that is worth the name."""
        if not is_loopback(self.host) and len(self.token) < 16:
            raise ConfigError(
                f"--host {self.host} can be reached from other machines: a token of 16 characters or more is needed. Put "
                f"it into a file (--token-file) or into TANDEMRANK_TOKEN."
            )
        if not self.token.isascii() or any(c.isspace() for c in self.token):
            raise ConfigError("a token is printable ASCII without spaces; got other characters.")

    def check(self, headers: dict[bytes, bytes], *, admin: bool, open_to_all: bool = False) -> None:
        """Refuses whoever may not."""
        if is_loopback(self.host):
            # A page on the web that has its own name point to this machine is refused by the name it uses.
            if not _names_this_machine(headers.get(b"host", b"localhost").decode("latin-1")):
                raise Refused(421, "this server answers for 127.0.0.1 and localhost only.")
            if not admin:
                return
        if open_to_all:
            return
        given = headers.get(b"authorization", b"")
        if not hmac.compare_digest(given, b"Bearer " + self.token.encode()):
            raise Refused(401, "this needs the token: Authorization: Bearer TOKEN.")


# An IPv6 address in brackets, or a name; then perhaps a port, and nothing else.
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+))(?::[0-9]{1,5})?")


@lru_cache(maxsize=256)
def _names_this_machine(host: str) -> bool:
    found = HOST.fullmatch(host)
    return found is not None and is_loopback((found[1] or found[2]).lower())


def headers_of(given: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name; one that must be there once at most, and is there twice, is refused: which of them counts?"""
    found = dict(given)
    if len(found) != len(given):
        names = [name for name, _ in given]
        for name in ONCE:
            if names.count(name) > 1:
                raise Refused(400, f"expected one header {name.decode()}, got {names.count(name)}.")
    return found


def check_origin(headers: dict[bytes, bytes]) -> None:
    """Refuses what a page of another origin has a browser send; other programs send no such header."""
    scheme, _, rest = headers[b"origin"].lower().partition(b"://")
    if scheme not in (b"http", b"https") or not rest or rest != headers.get(b"host", b"").lower():
        raise Refused(403, "this is from a page of another origin. A proxy in front must pass Host on as it is.")


async def read_body(headers: dict[bytes, bytes], receive: Receive, limits: Limits) -> bytes:
    """The whole body, within its limit of size; that of time is the connection's (`protocol`)."""
    kind = headers.get(b"content-type", b"")
    if kind != JSON and kind.partition(b";")[0].strip().lower() != JSON:
        # A form on another site can send anything but this without asking first.
        raise Refused(415, "expected Content-Type: application/json.")
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > limits.body:
        raise Refused(413, f"a body has {limits.body} bytes at most.")
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the connection ended before the body.")
        part = message.get("body", b"")
        size += len(part)
        if size > limits.body:
            raise Refused(413, f"a body has {limits.body} bytes at most.")
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


# --- one process --------------------------------------------------------------------------------------------------------

SWITCH = 0.0005  # seconds after which a thread that makes segments lets the answers go on


def read_token(path: Path | None, host: str) -> str:
    """The token of a file or of TANDEMRANK_TOKEN; on the loopback a new one where there is none."""
    if path is not None:
        try:
            token = regular(path).read_text(encoding="utf-8").strip()
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
        """Every tenth of a second; ends the connections whose request has not arrived in time."""
        if counter % 5 == 0:
            latest = asyncio.get_running_loop().time() - self.limits.seconds
            for connection in list(self.server_state.connections):
                if (since := getattr(connection, "since", None)) is not None and since < latest:
                    connection.transport.close()
        return await super().on_tick(counter)


def server(app: Any, address: Address, *, listening: Callable[[int], None] = lambda port: None) -> Running:
    """A server of an ASGI application that is ready to run."""
    sys.setswitchinterval(SWITCH)

    class Connection(BoundedConnection):
        limits = address.limits

    config = uvicorn.Config(
        app,
        host=address.host,
        port=address.port,
        http=Connection,
        ws="none",
        loop="uvloop",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="on",
        limit_concurrency=address.limits.connections,
        timeout_keep_alive=int(address.limits.idle),
        timeout_graceful_shutdown=10,
        backlog=256,
    )
    return Running(config, address.limits, listening)
