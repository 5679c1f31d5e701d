"""What a stranger may ask for: sizes, times, hosts and the token, checked before anything else is done."""

import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tandemrank.errors import ConfigError

JSON = b"application/json"
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
]
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
class Access:
    """Who may do what: on the loopback everybody may ask, elsewhere only who has the token; admin calls need it always."""

    host: str
    token: str

    def __post_init__(self) -> None:
        """Refuses to be reachable from elsewhere without a token that is worth the name."""
        if not is_loopback(self.host) and len(self.token) < 16:
            raise ConfigError(
                f"--host {self.host} can be reached from other machines: a token of 16 characters or more is needed. Put "
                f"it into a file (--token-file) or into TANDEMRANK_TOKEN."
            )
        if not self.token.isascii() or any(c.isspace() for c in self.token):
            raise ConfigError("a token is printable ASCII without spaces; another came.")

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
