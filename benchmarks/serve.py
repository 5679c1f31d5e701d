"""A live policy over HTTP against the same framework answering a constant, side by side; and what swaps and kills do to it.

    python benchmarks/serve.py [--quick] [--seed 0] [--json]


Everything goes to the loopback and is bounded in count. Requests to the two servers take turns, so that a busy moment of the
machine hits both. The client is one thread with bare sockets: it costs both the same.
"""

import json
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import polars as pl

from _common import not_negative, options, report
from tandemrank._base.ids import Vocabulary
from tandemrank.cli.terminal import note
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.serving import replay
from tandemrank.serving.client import Client, started
from tandemrank.serving.engine import Server
from tandemrank.serving.live_policy import LivePolicy
from tandemrank.serving.propensities import Propensities
from tandemrank.serving.recorder import Recorder
from tandemrank.serving.sealing import Sealer
from tandemrank.serving.service import PolicyFolder

TOKEN = "a-token-of-the-benchmark"
CONSTANT = (str(Path(__file__).with_name("constant.py")),)
CONNECTIONS = 8


@dataclass(frozen=True)
class Size:
    """How much is measured. D, K2, K are those of MovieLens-1M in the paper."""

    D: int = 3706
    K2: int = 500
    K: int = 10
    rank: int = 50
    queries: int = 500
    latency: int = 4000  # requests to each server, one at a time
    throughput: int = 16_000  # requests to each, over several connections
    swaps: int = 20
    swap_requests: int = 10_000
    kills: int = 20
    kill_seconds: float = 1.4
    replayed: int = 100_000
    million: int = 1_000_000  # items of the large catalogue; 0 leaves it out
    million_requests: int = 200


@dataclass(frozen=True)
class Swaps:
    """Hot swaps under load: requests that did not get a list, and lists that are not wholly of the policy that they name."""

    swaps: int
    requests: int
    failed: int
    mixed: int


@dataclass(frozen=True)
class Kills:
    """`kill -9` under load: impressions acknowledged a second before that are not in the log, torn segments, doubles."""

    kills: int
    acknowledged: int
    lost: int
    torn: int
    double: int


@dataclass(frozen=True)
class Large:
    """Engine alone, D = 1,000,000 x 64, milliseconds: queries that come for the first time, and those kept, both exact."""

    D: int
    p50_ms: float
    p99_ms: float
    kept_p50_ms: float
    kept_p99_ms: float


@dataclass(frozen=True)
class Served:
    """All of it; ratios are over the constant's, in the same run.

    `cpu_ms`: processor time of the server per request, which other work on the machine changes least (Linux; NaN elsewhere).
    """

    p50_ratio: float
    p99_ratio: float
    throughput_ratio: float
    p50_ms: float
    p99_ms: float
    requests_per_second: float
    constant_p50_ms: float
    constant_p99_ms: float
    constant_requests_per_second: float
    cpu_ms: float
    constant_cpu_ms: float
    swaps: Swaps
    kills: Kills
    replayed: int
    replay_equal: float
    large: Large | None


def measure(size: Size | None = None, *, seed: int = 0, say: Callable[[object], None] = lambda found: None) -> Served:
    """Everything, in a temporary folder; `say` hears of each part as soon as it is known."""
    size = size or Size()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(2):
            random_policy(size, seed + number).save(folder / "policies" / f"policy-{number}")
        p50, p99, rate, cpu = _speed(folder, size)
        say(f"p50 {p50}, p99 {p99}, cpu {cpu} ms, {rate} requests per second: of the policy and of the constant")
        say(equal := _replayed(folder, size))
        say(swaps := swapped(folder, size))
        say(kills := killed(folder, size))
        say(many := large(size, seed) if size.million else None)
        return Served(
            p50_ratio=p50[0] / p50[1],
            p99_ratio=p99[0] / p99[1],
            throughput_ratio=rate[0] / rate[1],
            p50_ms=p50[0],
            p99_ms=p99[0],
            requests_per_second=rate[0],
            constant_p50_ms=p50[1],
            constant_p99_ms=p99[1],
            constant_requests_per_second=rate[1],
            cpu_ms=cpu[0],
            constant_cpu_ms=cpu[1],
            swaps=swaps,
            kills=kills,
            replayed=size.replayed,
            replay_equal=equal,
            large=many,
        )


def random_policy(size: Size, seed: int) -> TwoStagePolicy:
    """A policy of random factors; scores have a standard deviation of about 2."""
    rng = np.random.default_rng(seed)
    scale = np.sqrt(2 / np.sqrt(size.rank))
    stages = [
        MatrixFactorisation(
            rng.normal(scale=scale, size=(size.queries, size.rank)), rng.normal(scale=scale, size=(size.D, size.rank))
        )
        for _ in range(2)
    ]
    ids = Vocabulary(pl.Series(range(size.queries)), pl.Series(range(size.D)))
    return TwoStagePolicy(stages[0], stages[1], size.K2, size.K, ids)


# --- a client that costs little ---------------------------------------------------------------------------------------


class Wire:
    """One connection: a request goes out, a whole answer comes back."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, query: int) -> None:
        """A question."""
        body = b'{"query_id":%d}' % query
        head = b"POST /rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self.socket.sendall(head % len(body) + body)

    def receive(self) -> tuple[int, bytes]:
        """Status and body."""
        found = self._part()
        while b"\r\n\r\n" not in found:
            found += self._part()
        head, _, body = found.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(body) < length:
            body += self._part()
        return int(head[9:12]), body

    def _part(self) -> bytes:
        found = self.socket.recv(65536)
        if not found:
            raise ConnectionError("the server ended the connection")
        return found

    def close(self) -> None:
        """Ends it."""
        self.socket.close()


@contextmanager
def wires(url: str, n: int) -> Iterator[list[Wire]]:
    """Several connections."""
    found = [Wire(url) for _ in range(n)]
    try:
        yield found
    finally:
        for wire in found:
            wire.close()


def _cpu(pid: int) -> float:
    """Seconds of processor time that a process has had."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _speed(folder: Path, size: Size) -> tuple[list[float], list[float], list[float], list[float]]:
    """p50 and p99 in milliseconds, requests per second, milliseconds of processor time: of the policy and of the constant."""
    with ExitStack() as stack:
        policy = str(folder / "policies" / "policy-0")
        ours = stack.enter_context(started(policy, "--log", str(folder / "log-speed"), token=TOKEN))
        other = stack.enter_context(started(token=TOKEN, python=CONSTANT))
        rng = np.random.default_rng(0)
        one = [stack.enter_context(wires(server.url, 1))[0] for server in (ours, other)]
        taken = np.zeros((2, size.latency))
        for number in range(-300, size.latency):  # the first ones warm both up
            query = int(rng.integers(size.queries))
            for which in (0, 1) if number % 2 else (1, 0):
                start = time.perf_counter()
                one[which].send(query)
                one[which].receive()
                taken[which, max(number, 0)] = time.perf_counter() - start
        rates: list[list[float]] = [[], []]
        before = [_cpu(server.process.pid) for server in (ours, other)]
        for _ in range(10):
            for which, server in enumerate((ours, other)):
                with wires(server.url, CONNECTIONS) as both:  # anew: a server ends a connection that says nothing
                    rates[which].append(_rate(both, size.throughput // 10, size.queries, rng))
        after = [_cpu(server.process.pid) for server in (ours, other)]
    cpu = [1000 * (b - a) / size.throughput for a, b in zip(before, after, strict=True)]
    p50, p99 = (1000 * np.quantile(taken, q, axis=1) for q in (0.5, 0.99))
    return p50.tolist(), p99.tolist(), [float(np.median(found)) for found in rates], cpu


def _rate(connections: Sequence[Wire], n: int, queries: int, rng: np.random.Generator) -> float:
    """Requests per second with a request under way on every connection."""
    asked = rng.integers(queries, size=n).tolist()
    start = time.perf_counter()
    for first in range(0, n, len(connections)):
        for wire, query in zip(connections, asked[first:], strict=False):
            wire.send(query)
        for wire, _ in zip(connections, asked[first:], strict=False):
            wire.receive()
    return n / (time.perf_counter() - start)


# --- swaps, kills, replay ---------------------------------------------------------------------------------------------


def swapped(folder: Path, size: Size) -> Swaps:
    """Policies take turns while requests come; every list is drawn again afterwards from the policy that it names."""
    failed, done, log = 0, threading.Event(), folder / "log-swaps"
    with started(str(folder / "policies" / "policy-0"), "--log", str(log), token=TOKEN) as server:
        admin = Client(server.url, token=TOKEN)

        def swap() -> None:
            for number in range(size.swaps):
                policy = admin.call("POST", "/policies", {"folder": f"policy-{(number + 1) % 2}"})["policy"]
                admin.call("POST", "/split", {"policy": policy, "share": 1})
            admin.close()
            done.set()

        thread = threading.Thread(target=swap)
        thread.start()
        sent, rng = 0, np.random.default_rng(0)
        with wires(server.url, 4) as connections:
            while sent < size.swap_requests or not done.is_set():
                for wire in connections:
                    wire.send(int(rng.integers(size.queries)))
                found = [wire.receive() for wire in connections]
                failed += sum(status != 200 or len(json.loads(body)["items"]) != size.K for status, body in found)
                sent += len(connections)
        thread.join()
    audit = _sealed(folder, log)
    return Swaps(size.swaps, sent, failed + (sent - audit.impressions), audit.impressions - audit.equal)


def killed(folder: Path, size: Size) -> Kills:
    """A server is killed and started again; what it acknowledged a second before must be in the log, once, and whole."""
    log, acknowledged = folder / "log-kills", []
    for _ in range(size.kills):
        with started(str(folder / "policies" / "policy-0"), "--log", str(log), token=TOKEN) as server:
            found = _until_killed(server.url, server.process.pid, size)
            server.process.wait()
        end = found[-1][1]
        acknowledged += [name for name, at in found if at < end - 1.0]
    if not size.kills:
        return Kills(0, 0, 0, 0, 0)
    _sealed(folder, log)
    kept, torn = [], 0
    for segment in replay.segments([log]):
        try:
            kept += pl.read_parquet(segment)["impression_key"].to_list()
        except pl.exceptions.PolarsError:
            torn += 1
    lost = len(set(acknowledged) - set(kept))
    return Kills(size.kills, len(acknowledged), lost, torn, len(kept) - len(set(kept)))


def _until_killed(url: str, pid: int, size: Size) -> list[tuple[str, float]]:
    """Impressions and when each was acknowledged; the server dies in the middle of it."""
    found: list[tuple[str, float]] = []
    timer = threading.Timer(size.kill_seconds, lambda: os.kill(pid, signal.SIGKILL))
    timer.start()
    rng = np.random.default_rng(pid)
    with wires(url, 2) as connections:
        try:
            while True:
                for wire in connections:
                    wire.send(int(rng.integers(size.queries)))
                for wire in connections:
                    found.append((json.loads(wire.receive()[1])["impression_id"], time.monotonic()))
        except OSError:
            timer.join()
    return found


def _sealed(folder: Path, log: Path) -> replay.Replayed:
    """Makes segments of what a server left, and draws every list again."""
    policies = PolicyFolder(folder / "policies")
    Sealer(log, Propensities(samples=1, find=policies.find)).seal(everything=True)
    return replay.replay([log], policies.find(replay.digests([log])))


def _replayed(folder: Path, size: Size) -> float:
    """The share of equal lists among many, of the engine alone."""
    live = LivePolicy(random_policy(size, 0))
    recorder = Recorder(folder / "log-replay", Propensities(samples=1))
    server = Server(live, recorder=recorder)
    rng = np.random.default_rng(1)
    for query in rng.integers(size.queries, size=size.replayed).tolist():
        server.rank(query)
    recorder.seal(everything=True)
    recorder.close()
    found = replay.replay([folder / "log-replay"], [live])
    return found.equal / size.replayed


def large(size: Size, seed: int) -> Large:
    """A large catalogue: a list for queries that come for the first time, and again."""
    big = Size(D=size.million, K2=size.K2, K=size.K, rank=64, queries=size.million_requests + 1)
    policy = random_policy(big, seed)
    return Large(size.million, *_first_and_kept(policy, size.million_requests))


def _first_and_kept(policy: TwoStagePolicy, requests: int) -> tuple[float, float, float, float]:
    """p50 and p99 of the first list of a query, and of the second."""
    server = Server(LivePolicy(policy))
    server.traffic.first.warm()
    taken = np.zeros((requests, 2))
    for query in range(requests):
        for turn in range(2):
            start = time.perf_counter()
            server.rank(query + 1)
            taken[query, turn] = 1000 * (time.perf_counter() - start)
    (first, again), (first_99, again_99) = np.quantile(taken, (0.5, 0.99), axis=0).tolist()
    return first, first_99, again, again_99


def main() -> None:
    """Measures and prints."""
    found = options(__doc__)
    found.add_argument("--quick", action="store_true", help="a tenth of everything, and no catalogue of a million")
    found.add_argument("--seed", type=not_negative, default=0)
    asked = found.parse_args()
    quick = Size(latency=400, throughput=1600, swaps=2, swap_requests=1000, kills=2, replayed=10_000, million=0)
    report(
        lambda _: measure(quick if asked.quick else Size(), seed=asked.seed, say=lambda part: note(str(part))),
        "serving, swapping, killing, replaying",
        as_json=asked.json,
    )


if __name__ == "__main__":
    main()
