"""What a monitoring system reads at /metrics, in Prometheus' format; no ids of queries or items, and no features."""

import time
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)  # seconds
RECENT = 4096  # requests whose latencies are kept for quantiles


class _Times:
    """A histogram of Prometheus'; its own is several times as dear, and every answer passes here."""

    def __init__(self, name: str, words: str) -> None:
        self.name, self.words, self.sum, self.counts = name, words, 0.0, [0] * (len(BUCKETS) + 1)

    def observe(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """As Prometheus has it: how many took at most so long."""
        edges = [*map(floatToGoString, BUCKETS), "+Inf"]
        totals = list(zip(edges, accumulate(self.counts), strict=True))
        yield HistogramMetricFamily(self.name, self.words, buckets=totals, sum_value=self.sum)


class Metrics:
    """The numbers of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        kept = self.registry
        self.requests = Counter(
            "tandemrank_requests_total", "Requests by path and status.", ["path", "status"], registry=kept
        )
        self.seconds = _Times("tandemrank_rank_seconds", "Time of a request to rank.")
        kept.register(self.seconds)
        self.impressions = Counter("tandemrank_impressions_total", "Lists shown, by pair.", ["policy"], registry=kept)
        self.unlogged = Counter("tandemrank_unlogged_total", "Lists that the log could not take.", registry=kept)
        self.log_failing = Gauge("tandemrank_log_failing", "1 while the log takes no records.", registry=kept)
        self.damaged = Counter("tandemrank_damaged_records_total", "Records that could not be used.", registry=kept)
        self.events = Counter("tandemrank_events_total", "Events by what became of them.", ["fate"], registry=kept)
        self.share = Gauge("tandemrank_share", "Share of the traffic of a pair.", ["policy"], registry=kept)
        self.swaps = Counter("tandemrank_swaps_total", "Changes of who answers.", registry=kept)
        self.rollbacks = Counter("tandemrank_rollbacks_total", "Rollbacks, by whom.", ["by"], registry=kept)
        self.ready = Gauge("tandemrank_ready", "1 after warm-up.", registry=kept)
        self.unsynced = Gauge("tandemrank_unsynced_bytes", "Bytes of the journal not surely on disk.", registry=kept)
        self.sealed = Counter("tandemrank_sealed_impressions_total", "Impressions in segments.", registry=kept)
        self.set_aside = Counter("tandemrank_set_aside_total", "Impressions without a known propensity.", registry=kept)
        self.late = Counter("tandemrank_late_clicks_total", "Clicks after the window, when sealed.", registry=kept)
        self.seal_failures = Counter(
            "tandemrank_seal_failures_total", "Segments that could not be made.", registry=kept
        )
        self.copied = Counter("tandemrank_copied_segments_total", "Segments copied to the bucket.", registry=kept)
        self.copy_failures = Counter("tandemrank_copy_failures_total", "Failures to copy to the bucket.", registry=kept)
        self._counted: dict[tuple[str, int], int] = {}
        self._shown: dict[str, int] = {}
        self._recent: list[float] = []
        self._ends: list[float] = []
        self._at = 0

    def answered(self, path: str, status: int) -> None:
        """A request got this status. Prometheus' own counters are dear: they hear of it when somebody looks."""
        self._counted[path, status] = self._counted.get((path, status), 0) + 1

    def shown(self, policy: str) -> None:
        """A list of the pair went out."""
        self._shown[policy] = self._shown.get(policy, 0) + 1

    def ranked(self, seconds: float) -> None:
        """One request to rank was answered."""
        self.seconds.observe(seconds)
        if len(self._recent) < RECENT:
            self._recent.append(seconds)
            self._ends.append(time.monotonic())
        else:
            self._recent[self._at], self._ends[self._at] = seconds, time.monotonic()
            self._at = (self._at + 1) % RECENT

    def latency(self) -> dict[str, float]:
        """Quantiles of recent requests in milliseconds, and requests per second over the last ten seconds."""
        found = sorted(self._recent)
        quantiles = {
            f"p{q}": 1000 * found[min(len(found) - 1, int(len(found) * q / 100))] if found else 0.0
            for q in (50, 90, 99)
        }
        since = time.monotonic() - 10
        return {**quantiles, "per_second": sum(end > since for end in self._ends) / 10}

    def text(self) -> bytes:
        """As Prometheus reads it."""
        counted, self._counted, shown, self._shown = self._counted, {}, self._shown, {}
        for (path, status), n in counted.items():
            self.requests.labels(path, status).inc(n)
        for policy, n in shown.items():
            self.impressions.labels(policy).inc(n)
        return generate_latest(self.registry)
