"""Thousands of mixed jobs through a real server, while its slots, their keepers and the server itself are killed.

    python -m bench.load [--jobs 20000] [--clients 64] [--slots 4] [--kills 60] [--seed 0]

It promises to exit with 1 unless every request came to exactly one right result or one error to try
again on, nothing was left behind, memory stayed flat and no wait was counted as a job's time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator

from bench.fence import second_fence
from bench.load_jobs import Job, make_job
from bench.load_server import Life, Sample, Server
from sandbox import Execution, RemoteSandbox
from sandbox.errors import VeriwardError
from sandbox.guarantees import Guarantees
from veriward.output import say, say_table

_VICTIMS = ("keeper", "server", "pid 1")
_GAP_S = 2.0  # between kills, so that none meets one job twice: what loses two slots counts as the program's doing
_SAMPLE_S = 0.25
_LEAST_SAMPLES = 20
_KEPT_ANSWER_BYTES = 4096  # what the server keeps of a request for ten minutes, beside its body
_GROWTH = 1.1


class Tally:
    """What came of the requests so far."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.again: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.kills: Counter[str] = Counter()
        self.wall_s = 0.0
        self.elapsed_s: list[float] = []
        self.answered_bytes = 0

    @property
    def done(self) -> int:
        return self.kinds.total()

    def take(self, job: Job, found: Execution, elapsed_s: float) -> None:
        self.kinds[job.kind] += 1
        self.elapsed_s.append(elapsed_s)
        self.wall_s += found.wall_s
        self.answered_bytes += _KEPT_ANSWER_BYTES + 4 * (len(found.stdout) + len(found.stderr)) // 3
        if found.status == "unavailable":
            self.again[found.error[-100:]] += 1
        elif wrong := job.wrong(found):
            self.wrong.append(f"{job.kind}: {wrong}")


async def load(server: Server, jobs: int, clients: int, kills: int, seed: int) -> Tally:
    tally = Tally()
    with RemoteSandbox(server.url, token=server.token, patience_s=300) as remote:
        guarantees = await asyncio.to_thread(remote.guarantees)
        numbers = iter(range(jobs))
        async with asyncio.TaskGroup() as group:
            sampler = group.create_task(_sample(server, tally))
            chaos = group.create_task(_kill_at_random(server, tally, jobs, kills, seed))
            work = [group.create_task(_client(remote, numbers, seed, guarantees, tally)) for _ in range(clients)]
            await asyncio.wait(work)
            await chaos
            sampler.cancel()
    return tally


async def _client(
    remote: RemoteSandbox, numbers: Iterator[int], seed: int, guarantees: Guarantees, tally: Tally
) -> None:
    for number in numbers:
        job = make_job(seed, number, guarantees)
        began = time.monotonic()
        try:
            found = await remote.run(job.program)
        except VeriwardError as error:
            tally.wrong.append(f"{job.kind}: refused for good: {error}")
            tally.kinds[job.kind] += 1
            continue
        tally.take(job, found, time.monotonic() - began)


async def _kill_at_random(server: Server, tally: Tally, jobs: int, kills: int, seed: int) -> None:
    """One after the other when so many jobs are done; the server only early enough to be watched afterwards."""
    rng = random.Random(f"kills/{seed}")
    for number in range(kills):
        moment = (number + rng.uniform(0.2, 0.8)) * jobs / kills
        while tally.done < moment:
            await asyncio.sleep(0.01)
        what = _VICTIMS[number % 3] if moment < 0.7 * jobs else _VICTIMS[::-2][number % 2]
        if server.kill(what, rng):
            tally.kills[what] += 1
        if what == "server":
            await asyncio.to_thread(server.start)
        await asyncio.sleep(_GAP_S)


async def _sample(server: Server, tally: Tally) -> None:
    while True:
        life = server.life
        if rss_kb := life.rss_kb():
            life.samples.append(Sample(rss_kb, tally.answered_bytes))
        await asyncio.sleep(_SAMPLE_S)


# The verdict


def growth_of(life: Life) -> tuple[float, float, float] | None:
    """MiB in the first and last fifth after warming up, and what answers kept for asking again may explain."""
    samples = life.samples[len(life.samples) // 5 :]
    if len(samples) < _LEAST_SAMPLES:
        return None
    fifth = len(samples) // 5
    first, last = samples[:fifth], samples[-fifth:]
    kept = statistics.mean(s.answered_bytes for s in last) - statistics.mean(s.answered_bytes for s in first)
    before, after = (statistics.median(s.rss_kb for s in part) / 1024 for part in (first, last))
    return before, after, kept / (1 << 20)


def violations(server: Server, tally: Tally, jobs: int, elapsed_s: float, more_descriptors: int) -> list[str]:
    found = [f"wrong result: {text}" for text in tally.wrong[:20]]
    if len(tally.wrong) > 20:
        found.append(f"wrong results: {len(tally.wrong)} in all")
    if tally.done != jobs:
        found.append(f"{tally.done} requests of {jobs} came to an end")
    if tally.wall_s > server.slots * elapsed_s:
        found.append(f"jobs took {tally.wall_s:.0f} s, more than {server.slots} slots had in {elapsed_s:.0f} s")
    if more_descriptors > 0:
        found.append(f"{more_descriptors} descriptors more than at the start")
    for life in server.lives:
        growth = growth_of(life)
        if growth is not None and growth[1] > _GROWTH * growth[0] + growth[2]:
            found.append(f"server {life.process.pid} grew from {growth[0]:.0f} to {growth[1]:.0f} MiB")
    if "Traceback" in server.log():
        found.append(f"a traceback in the server's log: {server.log()[server.log().index('Traceback') :][:1500]}")
    return found


def report(server: Server, tally: Tally, elapsed_s: float, more_descriptors: int) -> None:
    waits = sorted(tally.elapsed_s)
    say_table("jobs", ("kind", "done"), [(kind, str(count)) for kind, count in sorted(tally.kinds.items())])
    say_table("killed", ("what", "times"), [(what, str(tally.kills[what])) for what in _VICTIMS])
    rows = [
        ("wrong results", str(len(tally.wrong))),
        ("errors to try again on", str(tally.again.total())),
        ("jobs/s", f"{tally.done / elapsed_s:.0f}"),
        ("median and most s from asking to result", f"{waits[len(waits) // 2]:.2f} {waits[-1]:.2f}"),
        ("share of the slots' time in jobs", f"{tally.wall_s / (server.slots * elapsed_s):.2f}"),
        ("descriptors more than at the start", str(more_descriptors)),
    ]
    for life in server.lives:
        if growth := growth_of(life):
            rows.append((f"MiB of server {life.process.pid}", f"{growth[0]:.1f} -> {growth[1]:.1f}"))
    say_table("load", ("", "found"), rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with second_fence(processes=2000, memory_bytes=6 << 30), Server(args.slots) as server:
        began = time.monotonic()
        tally = asyncio.run(load(server, args.jobs, args.clients, args.kills, args.seed))
        elapsed_s = time.monotonic() - began
        more_descriptors = server.settled_descriptors()
        found = violations(server, tally, args.jobs, elapsed_s, more_descriptors)
        report(server, tally, elapsed_s, more_descriptors)
        found += [f"left behind: {what}" for what in server.stop()]
    for text in found:
        say(f"VIOLATION: {text}")
    if not found:
        say("every promise was kept")
    return int(bool(found))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    os._exit(130)
