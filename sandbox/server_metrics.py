"""The server's counters, as Prometheus reads them.

One registry per app, so that several apps of a process don't add up. A job's seconds are its own;
its wait for a slot is counted apart.
"""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sandbox.models import Execution
from sandbox.server_queue import JobQueue

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    def __init__(self, queue: JobQueue) -> None:
        self._registry = CollectorRegistry()
        name = "veriward_sandbox_"
        self._jobs = Counter(name + "jobs", "Jobs that ran, by what came of them", ["status"], registry=self._registry)
        self._wall = Histogram(name + "job_wall_seconds", "A job's own time", buckets=_SECONDS, registry=self._registry)
        self._wait = Histogram(
            name + "queue_seconds", "A job's wait for a slot", buckets=_SECONDS, registry=self._registry
        )
        self._refused = Counter(name + "refused", "Requests turned away unrun", ["reason"], registry=self._registry)
        self._responses = Counter(name + "http_responses", "HTTP answers", ["code"], registry=self._registry)
        self.sessions = Gauge(name + "sessions", "Open sessions", registry=self._registry)
        for what, help_text in (("slots", "Jobs at a time"), ("running", "Jobs running"), ("waiting", "Jobs waiting")):
            gauge = Gauge(name + what, help_text, registry=self._registry)
            gauge.set_function(partial(getattr, queue, what))

    def ran(self, execution: Execution, queue_s: float) -> None:
        self._jobs.labels(execution.status).inc()
        self._wall.observe(execution.wall_s)
        self._wait.observe(queue_s)

    def refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def responded(self, code: int) -> None:
        self._responses.labels(str(code)).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)
