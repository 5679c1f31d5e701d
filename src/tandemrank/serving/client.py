"""A client of a few lines, with nothing but the standard library.

client = Client("http://127.0.0.1:8080")
ranked = client.rank(17)
client.click(ranked["impression_id"], ranked["items"][0])
"""

import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tandemrank.errors import ConfigError, JobError

# Of a call whose connection broke, or that a dying replica left without an answer: feedback is idempotent, and a list that
# nobody saw gets no clicks.
RETRIES = 1
REPEATABLE = ("/rank", "/feedback")


class Started(NamedTuple):
    """A server's address, and its process."""

    url: str
    process: "subprocess.Popen[str]"


class Client:
    """Calls a server; a connection per thread, kept open. A call that fails on its way is made once more.

    So is a question, or feedback, that the server fails to answer (a status of 500 and above): another replica may do it.
    """

    def __init__(self, url: str, *, token: str = "", timeout: float = 10.0) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"expected http://HOST:PORT; got {url!r}. Put TLS before the server, and this behind it.")
        self.host, self.port, self.timeout = parts.hostname, parts.port or 80, timeout
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        self._own = threading.local()

    def rank(self, query_id: int | str | None = None, **asked: Any) -> dict[str, Any]:
        """A list; `asked` may have query_features, context, unit, session, K, items."""
        return self.call("POST", "/rank", {"query_id": query_id, **asked})

    def rank_all(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A batch of lists."""
        answers: list[dict[str, Any]] = self.call("POST", "/rank", {"requests": requests})["answers"]
        return answers

    def click(self, impression_id: str, *items: int | str) -> dict[str, Any]:
        """Clicks on items of an impression; as often as you like."""
        return self.feedback(impression_id, [{"item": item} for item in items])

    def purchase(self, impression_id: str, item: int | str, value: float | None = None) -> dict[str, Any]:
        """That an item was bought, and for how much; the most that was said counts."""
        return self.feedback(impression_id, [{"item": item, "type": "purchase", "value": value}])

    def feedback(self, impression_id: str, events: list[dict[str, Any]]) -> dict[str, Any]:
        """Events of an impression."""
        return self.call("POST", "/feedback", {"impression_id": impression_id, "events": events})

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Any call; a refusal is a `JobError` with the server's words."""
        payload = None if body is None else json.dumps(body)
        for left in range(RETRIES, -1, -1):
            try:
                status, content = self._once(method, path, payload)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not left:
                    raise JobError(f"http://{self.host}:{self.port} does not answer: {error!r}.") from error
                continue
            if status < 500 or path not in REPEATABLE:
                break
        if status >= 400:
            raise JobError(f"{method} {path}: {status}, {_words(content)}")
        found: dict[str, Any] = json.loads(content) if content else {}
        return found

    def _once(self, method: str, path: str, payload: str | None) -> tuple[int, bytes]:
        """Status and body of the answer."""
        connection = self._connection()
        connection.request(method, path, payload, self._headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def _connection(self) -> http.client.HTTPConnection:
        if getattr(self._own, "connection", None) is None:
            self._own.connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        connection: http.client.HTTPConnection = self._own.connection
        return connection

    def close(self) -> None:
        """Ends this thread's connection."""
        if getattr(self._own, "connection", None) is not None:
            self._own.connection.close()
            self._own.connection = None


def _words(content: bytes) -> str:
    """What a refusal says; one of a proxy on the way is no JSON."""
    try:
        return str(json.loads(content)["error"])
    except (ValueError, TypeError, KeyError):
        return content[:200].decode(errors="replace")


@contextmanager
def started(*options: str, token: str, python: Sequence[str] = ("-m", "tandemrank", "serve")) -> Iterator[Started]:
    """`tandemrank serve OPTIONS` as a process of its own on a free port of the loopback, ended on leaving.

    `python`: another server for Python to run, that says as this one does that it answers.
    """
    line = [sys.executable, *python, *options, "--port", "0"]
    environment = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", **os.environ, "TANDEMRANK_TOKEN": token}
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        said: list[str] = []
        try:
            for words in process.stderr:
                said.append(words)
                if found := re.search(r"(http://127\.0\.0\.1:\d+) answers", words):
                    # What it says later must be read, or it would wait for us in the end.
                    threading.Thread(target=process.stderr.read, daemon=True).start()
                    yield Started(found[1], process)
                    break
            else:
                raise JobError(f"the server did not start: {' '.join(''.join(said).split())[-500:]}")
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
