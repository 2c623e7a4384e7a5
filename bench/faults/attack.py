"""One kill: the job is started, its victim gets its signal, and the outcome is judged."""

import re
import subprocess
import time

import verdict
from job import LOOK, Job, Undisturbed, folder_of, reference
from plan import LIMITS
from processes import send

START_LIMIT = 60  # seconds until the job has come as far as the kill's phase
TRIES = 6  # a kill that comes after the job's end is repeated with half the delay
CHECKPOINT = re.compile(r"checkpoint-\d+\.safetensors")


def await_phase(job):
    """Whether the job has come to the kill's phase; not when it has ended before."""
    kill = job.kill
    reached = {
        "start": lambda: kill.victim == "link" or len(job.victims()) >= (2 if kill.victim == "ranks" else 1),
        "joined": lambda: len(job.lines("pid")) == kill.ranks and (
            kill.victim != "child" or len(job.lines("child")) == kill.ranks),
        "done": lambda: job.lines("done"),
    }[kill.phase]
    until = time.monotonic() + START_LIMIT
    while not reached():
        if job.has_ended() or time.monotonic() > until:
            return False
        time.sleep(LOOK)
    return True


def choose(job):
    """The processes that get the signal."""
    kill, found = job.kill, job.victims()
    if not found:
        return []
    first = int(kill.pick * len(found))
    if kill.victim == "launcher and guardian":
        return sorted(found, key=lambda process: process.name != "lockstep-guard")
    if kill.victim == "ranks":
        return (found * 2)[first:first + min(len(found), 2 + int(kill.pick * 100) % 2)]
    return [found[first]]


def deliver(job):
    """Signals the victims. Returns those that were there."""
    kill = job.kill
    if kill.victim == "link":
        if job.has_ended():
            return None
        job.hosts.cut_link()
        return []
    names = kill.action.split()
    hit = [process for process in choose(job) if send(process.pid, names[0], job.marker)]
    if hit and len(names) > 1:
        time.sleep(kill.stop)
        for process in hit:
            send(process.pid, names[1], job.marker)
    return hit or None


def hit(kill, options, hosts):
    """Runs jobs until the kill has reached its victim."""
    delay = kill.delay
    for attempt in range(TRIES):
        job = Job(kill, options, folder_of(options, f"{kill.name}-{attempt}"), hosts)
        if kill.victim == "link":
            job.timeout = LIMITS[kill.mode] - 10  # of launchers that have not met yet
        job.start()
        if await_phase(job):
            time.sleep(delay)
            victims = deliver(job)
            if victims is not None:
                return job, victims
        job.wait(time.monotonic() + START_LIMIT)
        job.end()
        job.remove()
        delay /= 2
    return None, []


def attack(kill, options, hosts):
    """Everything about one kill, as a row of the JSON lines."""
    begin = time.monotonic()
    row = {"kill": kill.name, "seed": kill.seed, "what": str(kill), "hit": False}
    try:
        undisturbed = reference((kill.mode, kill.job), lambda: Job(kill, options, folder_of(options, f"{kill.name}-undisturbed"), hosts),
                                START_LIMIT)
    except Undisturbed as error:
        return row | {"faults": {"undisturbed": str(error)}}
    job, victims = hit(kill, options, hosts)
    if job is None:
        return row
    row["hit"] = True
    delivered = time.monotonic()
    until = delivered + LIMITS[kill.mode]
    faults = {}
    code = job.wait(until)
    # Processes of another host, and those of a launcher that was killed, end after the launcher.
    left = job.left(until, verdict.may_end_later(kill))
    row["seconds"] = job.seconds_after_kill = round(time.monotonic() - delivered, 3)
    if code is None or (left and verdict.may_end_later(kill)):
        faults["hang"] = f"after {LIMITS[kill.mode]} s: launcher {code}, {shown(left)}"
    elif left:
        faults["leftover"] = f"processes when the launcher had ended: {shown(left)}"
    job.end()
    if kill.victim == "link":
        job.hosts.cut_link(False)
    row.update(exit_code=code, victims=[{"pid": one.pid, "rank": one.rank} for one in victims])
    if "hang" not in faults:
        if wrong := verdict.wrong_cause(job, victims, code, undisturbed[0]):
            faults["cause"] = wrong
        ours, row["openmpi_files"] = job.files_left()
        if ours:
            faults.setdefault("leftover", f"files: {', '.join(ours)}")
        faults.update(next_job(job, code, undisturbed))
    row["faults"] = faults
    if faults:
        row.update(out=job.out[-3000:], err=job.err[-6000:])
    else:
        job.remove()
    row["seconds_in_all"] = round(time.monotonic() - begin, 3)
    return row


def next_job(job, code, undisturbed):
    """Faults that only a job in the same folder shows: locks, and the resumed training."""
    kill, options, faults = job.kill, job.options, {}
    if kill.logs:
        words = [options.build / "bin" / "lockstep", "run", "-n", "1", "--log-dir", "logs", "true"]
        again = subprocess.run(words, cwd=job.folder / "run", capture_output=True, text=True, check=False, timeout=60)
        if again.returncode != 0:
            faults["leftover"] = f"a second job cannot use the log folder: {again.stderr}"
        elif locks := [entry.name for entry in (job.folder / "run" / "logs").glob(".*")]:
            faults["leftover"] = f"lock files after a second job: {locks}"
    if kill.mode != "restart":
        return faults
    if code != 0:  # the launcher was the victim
        job.start()
        again = job.wait(time.monotonic() + START_LIMIT)
        if again != 0:
            job.end()
            faults["bits"] = f"the job cannot be resumed: {again}, {job.err}"
    digests = set(job.lines("done").values())
    if "bits" not in faults and digests != {undisturbed[0]}:
        faults["bits"] = f"resumed parameters: {digests}, expected {undisturbed[0]}"
    # A resumed training has written more files, and keeps as many.
    names = job.checkpoints()
    if "bits" not in faults and (len(names) != undisturbed[1] or not all(map(CHECKPOINT.fullmatch, names))):
        faults["leftover"] = f"checkpoint folder: {names}, expected {undisturbed[1]} checkpoints alone"
    return faults


def shown(processes):
    return "processes " + ", ".join(f"{one.pid} ({one.name}, rank {one.rank})" for one in processes)
