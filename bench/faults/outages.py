"""Links that fail and hosts that are paused for a while, during a training on two simulated hosts."""

import contextlib
import dataclasses
import os
import pathlib
import re
import time

import pages
from job import LOOK, Disturbance, Job, folder_of, reference
from processes import send

RANKS = 3
SUSPICION = 2  # seconds without a heartbeat, or half of the limit
START_LIMIT = 90  # seconds until all ranks have joined
END_LIMIT = 60  # seconds from the outage's end to the job's; TCP sends again up to once as late as it lasted
SLACK = 6  # seconds from the limit to the end of a rank, which sends its failure and leaves MPI
BEFORE = 0.5  # seconds of training before the outage
TRIES = 4  # of a case whose outage lasted longer than asked for
LATE = 0.3  # seconds by which an outage may last longer
KINDS = {"link down": None, "host paused": 2, "host of rank 0 paused": 1}


@dataclasses.dataclass(frozen=True)
class Outage(Disturbance):
    kind: str
    seconds: float
    heartbeat: float | None  # seconds; nothing: the default
    victim, launcher, mode, ranks = "link", "run", "two-hosts", RANKS

    @property
    def limit(self):
        return self.heartbeat or 15

    @property
    def ends_the_job(self):
        return self.seconds > self.limit

    @property
    def is_suspected(self):
        return self.seconds > 1.5 * min(SUSPICION, self.limit / 2)


class DisturbedJob(Job):
    @property
    def heartbeat(self):
        return self.kill.heartbeat

    def _command(self):
        tools = self.options.build / "bin"
        return [*self.hosts.enter(), tools / "lockstep", "run", *self.hosts.run_arguments(), tools / "bench_victim",
                "--train", "--steps", "200", "--pause", "15"]

    def on_host(self, number):
        """Its processes on that simulated host."""
        space = pathlib.Path("/run/netns", self.hosts.name(number)).stat().st_ino

        def is_there(process):
            with contextlib.suppress(OSError):
                return os.stat(f"/proc/{process.pid}/ns/net").st_ino == space

        return [process for process in self.processes() if is_there(process)]


@contextlib.contextmanager
def paused(job, host):
    """A host whose processes do not run and which acknowledges no packet, or a link that is down."""
    processes = job.on_host(host) if host else []
    job.hosts.cut_link()
    for process in processes:
        send(process.pid, "STOP", job.marker)
    try:
        yield
    finally:
        for process in processes:
            send(process.pid, "CONT", job.marker)
        job.hosts.cut_link(False)


def wrong_end(job, code, digest):
    """What is wrong about exit code, messages and results; nothing when all is right."""
    case, digests = job.kill, job.lines("done")
    if case.ends_the_job:
        lost = job.hosts.name(1 if case.kind == "host of rank 0 paused" else 2)
        if code == 0:
            return "exit code 0, expected another"
        named = f"no heartbeat from host {lost}" in job.err or "this process had been stopped for" in job.err
        return None if named else f"no line names host {lost}"
    if code != 0:
        return f"exit code {code}, expected 0"
    if len(digests) != RANKS or set(digests.values()) != {digest}:
        return f"results {digests}, expected {digest} of all ranks"
    if case.is_suspected and "is no longer suspected" not in job.err:
        return "no line says that the host is no longer suspected"
    return None


def run_case(case, options, hosts):
    """The outcome of a job with the outage, as a row of the table. The kernel may take 2 s to change the link. A case that fails is tried
    again if its outage therefore lasted longer."""
    for _ in range(TRIES):
        row, lasted = try_case(case, options, hosts)
        if case.ends_the_job or not row["problem"] or lasted <= case.seconds + LATE:
            break
    return row


def try_case(case, options, hosts):
    """The row, and how long the outage was, in seconds."""
    expected, _ = reference("outages", lambda: DisturbedJob(case, options, folder_of(options, "undisturbed"), hosts), START_LIMIT)
    job = DisturbedJob(case, options, folder_of(options, case.name), hosts)
    begin = time.monotonic()
    job.start()
    while len(job.lines("pid")) < RANKS:
        if job.exit_code is not None or time.monotonic() > begin + START_LIMIT:
            job.end()
            return job.row("the ranks did not join"), 0
        time.sleep(LOOK)
    time.sleep(BEFORE)
    outage, first_end = time.monotonic(), None
    with paused(job, KINDS[case.kind]):
        while time.monotonic() < outage + case.seconds:
            if first_end is None and sum(process.name == "bench_victim" for process in job.processes()) < RANKS:
                first_end = time.monotonic() - outage
            time.sleep(4 * LOOK)
    lasted = time.monotonic() - outage
    until = time.monotonic() + END_LIMIT
    code = job.wait(until)
    left = job.left(until)
    problem = None
    if code is None or left:
        problem = f"{END_LIMIT} s after the outage: exit code {code}, {len(left)} processes"
    job.end()
    problem = problem or wrong_end(job, code, expected)
    if not problem and case.ends_the_job and (first_end is None or first_end > case.limit + SLACK):
        problem = f"the first rank ended after {first_end} s, expected at most {case.limit + SLACK}"
    frames = [float(one) for one in re.findall(r"no longer suspected: .* arrived after (\d+\.\d) s", job.err)]
    shown = (f"ends after {first_end:.1f} s" if first_end else
             f"goes on, frames after {max(frames):.1f} s" if frames else "goes on")
    return job.row(problem, shown=shown), lasted


def table(rows):
    cells = {(row["case"].kind, row["case"].seconds): "**wrong**" if row["problem"] else row["shown"] for row in rows}
    return pages.table(["for", *KINDS], *([f"{seconds:g} s", *(cells[kind, seconds] for kind in KINDS)]
                                          for seconds in sorted({seconds for _, seconds in cells})))
