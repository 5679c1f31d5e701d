"""What a monitoring system reads at /metrics, in Prometheus' format; no ids of queries or items, and no features.

Nothing is told to Prometheus' library on the way of an answer: plain numbers are counted, and read when somebody looks.
"""

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from tandemrank.serving.service import Service

BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)  # seconds
RECENT = 4096  # requests whose latencies are kept for quantiles
COUNTS = {
    "swaps": "Changes of who answers.",
    "sealed_impressions": "Impressions in segments.",
    "set_aside": "Impressions without a known propensity.",
    "late_clicks": "Clicks after the window, when sealed.",
    "damaged_records": "Records that could not be used.",
    "seal_failures": "Segments that could not be made.",
    "copied_segments": "Segments copied to the bucket.",
    "copy_failures": "Failures to copy to the bucket.",
}


class Metrics:
    """The numbers of one server: those of HTTP, which it counts, and those of the service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.ready = False
        self.requests: Counter[tuple[str, str]] = Counter()  # by path and status
        self._times = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)  # how long a request took, and when it ended

    def answered(self, path: str, status: int) -> None:
        """A request got this status."""
        self.requests[path, str(status)] += 1

    def ranked(self, seconds: float) -> None:
        """One request to rank was answered."""
        self._times[bisect_left(BUCKETS, seconds)] += 1
        self._seconds += seconds
        self._recent.append((seconds, time.monotonic()))

    def latency(self) -> dict[str, float]:
        """Quantiles of recent requests in milliseconds, and requests per second over the last ten seconds."""
        found = sorted(seconds for seconds, _ in self._recent)
        quantiles = {
            f"p{q}": 1000 * found[min(len(found) - 1, int(len(found) * q / 100))] if found else 0.0
            for q in (50, 90, 99)
        }
        since = time.monotonic() - 10
        return {**quantiles, "per_second": sum(end > since for _, end in self._recent) / 10}

    def collect(self) -> Iterator[Metric]:
        """Every metric, as Prometheus' library has them."""
        service, recorder = self.service, self.service.recorder
        yield _counter("requests", "Requests by path and status.", self.requests, "path", "status")
        totals = zip([*map(floatToGoString, BUCKETS), "+Inf"], accumulate(self._times), strict=True)
        words = "Time of a request to rank."
        yield HistogramMetricFamily("tandemrank_rank_seconds", words, list(totals), self._seconds)
        yield _counter("impressions", "Lists shown, by policy.", service.outcomes.lists, "policy")
        yield _counter("events", "Events by what became of them.", service.outcomes.fates, "fate")
        yield _counter("rollbacks", "Rollbacks, by whom.", service.rollbacks, "by")
        yield _counter("unlogged", "Lists that the log could not take.", {(): service.server.unlogged})
        for name, words in COUNTS.items():
            yield _counter(name, words, {(): service.counts[name]})
        share = GaugeMetricFamily("tandemrank_share", "Share of the traffic of a policy.", labels=["policy"])
        for digest, part in service.server.traffic.mixture:
            share.add_metric([digest], part)
        yield share
        gauges = {
            "ready": ("1 after warm-up.", self.ready),
            "log_failing": ("1 while the log takes no records.", recorder is not None and bool(recorder.failing)),
            "unsynced_bytes": ("Bytes of the journal not surely on disk.", recorder.unsynced if recorder else 0),
        }
        for name, (words, value) in gauges.items():
            yield GaugeMetricFamily(f"tandemrank_{name}", words, float(value))

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self)  # it collects, as a registry does


def _counter(name: str, words: str, counts: Mapping[Any, int], *labels: str) -> CounterMetricFamily:
    """By the values of its labels: a tuple of them, or the one that there is."""
    found = CounterMetricFamily(f"tandemrank_{name}", words, labels=labels)
    for values, n in counts.items():
        found.add_metric(values if isinstance(values, tuple) else (values,), n)
    return found
