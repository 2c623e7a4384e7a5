"""A job of bench_victim: how it is started, who its processes are, and what it leaves behind."""

import contextlib
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid

from processes import MARKER, Scanner, send, state_of, words_of

SCANNER = Scanner()
LOOK = 0.005  # seconds between two looks
STEPS = {"light": 60, "training": 40, "restart": 40, "mpirun": 50, "two-hosts": 40}
# Folders of its own for /dev/shm and /tmp: all that is there later belongs to the job.
PRIVATE = 'mount --bind "$0/shm" /dev/shm && {}exec "$@"'
OF_OPENMPI = re.compile(r"^(ompi\.|open_mpi\.|openmpi-sessions|vader_segment|pmix|prte)")


def mounts_work():
    probe = ["unshare", "--mount", "--propagation", "private", "mount", "--bind", "/dev/shm", "/dev/shm"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def prepare(parser, options):
    """Checks the build folder, and whether jobs can have a /dev/shm and a /tmp of their own. Makes a folder in it for the jobs."""
    options.build = options.build.resolve()
    for name in ("lockstep", "bench_victim"):
        if not (options.build / "bin" / name).exists():
            parser.error(f"--build: got {options.build}, which has no bin/{name}; build that target first")
    options.private = mounts_work()
    if not options.private:
        print("no mount namespace can be made here (not root?): files in /dev/shm and /tmp are not checked")
    (options.build / parser.prog).mkdir(exist_ok=True)
    options.work = pathlib.Path(tempfile.mkdtemp(dir=options.build / parser.prog))


def as_usual():
    """Signals that this program was started with ignored, as in the background, end its jobs all the same."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Disturbance:
    """What is done to a job of the fault matrix. Classes that derive from it are dataclasses."""

    # `Job` reads these to know which files may be left.
    victim, mode, logs = "rank", "light", False

    @property
    def name(self):
        return re.sub(r"\W+", "-", " ".join(map(str, vars(self).values())))


class Undisturbed(Exception):
    """A job that nobody disturbed has failed."""


class Job:
    timeout = 120  # seconds; that of Lockstep's waits
    heartbeat = 2  # seconds without a heartbeat; nothing: the default

    def __init__(self, kill, options, folder, hosts=None):
        self.kill, self.options, self.hosts = kill, options, hosts
        self.folder = folder
        for name in ("tmp", "shm", "run"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.marker = uuid.uuid4().hex
        self._process = None

    # Starting and waiting

    def start(self):
        environment = {**os.environ, MARKER: self.marker, "OMP_NUM_THREADS": "1", "LOCKSTEP_TIMEOUT": str(self.timeout),
                       "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if self.heartbeat:
            environment["LOCKSTEP_HEARTBEAT"] = str(self.heartbeat)
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self._process = subprocess.Popen(
                [*self._privately(), *self._command()], cwd=self.folder / "run", env=environment,
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, preexec_fn=as_usual)

    def _privately(self):
        if not self.options.private:
            return []
        own_tmp = "" if str(self.options.build).startswith("/tmp/") else 'mount --bind "$0/tmp" /tmp && '
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", PRIVATE.format(own_tmp),
                str(self.folder)]

    def _command(self):
        kill, tools = self.kill, self.options.build / "bin"
        program = [tools / "bench_victim", "--steps", str(STEPS[kill.mode]), "--child", kill.child]
        if kill.train:
            program.append("--train")
        if kill.launcher == "run":
            words = [tools / "lockstep", "run", *(self.hosts.run_arguments() if self.hosts else ["-n", str(kill.ranks)])]
            if self.hosts:
                words = [*self.hosts.enter(), *words]
            if kill.logs:
                words += ["--log-dir", "logs"]
            if kill.mode == "restart":
                words += ["--max-restarts", "2", "--restart-delay", "0"]
                program += ["--checkpoints", "checkpoints"]
            return [*words, *program]
        return ["mpirun", "--oversubscribe", "--bind-to", "none", "-x", f"LOCKSTEP_BACKEND={kill.backend}",
                "-n", str(kill.ranks), *program]

    @property
    def exit_code(self):
        return self._process.poll()

    def wait(self, until):
        """The exit code; nothing when the launcher still runs then."""
        while self.exit_code is None and time.monotonic() < until:
            time.sleep(LOOK)
        return self.exit_code

    def digest(self, until):
        """Runs the job to its end. The digest of all ranks' results."""
        self.start()
        code = self.wait(until)
        digests = self.lines("done")
        if code != 0 or len(digests) != self.kill.ranks or len(set(digests.values())) != 1:
            self.end()
            raise Undisturbed(f"{self.kill.name}: the undisturbed job ended with {code}: {self.out}{self.err}")
        return digests[0]

    # Output

    @property
    def out(self):
        return (self.folder / "out").read_text(errors="replace")

    @property
    def err(self):
        return (self.folder / "err").read_text(errors="replace")

    def lines(self, word):
        """What ranks printed after that word, by rank."""
        return {int(rank): rest for rank, rest in re.findall(rf"\brank (\d+) {word} (\w+)$", self.out, re.M)}

    def starts(self):
        """How many ranks have joined, counted again after each restart."""
        return len(re.findall(r"\brank \d+ pid \d+$", self.out, re.M))

    # Processes

    def processes(self):
        return SCANNER.of(self.marker)

    def left(self, until, waits=True):
        """Processes that exist: now, or if it waits at that time, unless all have ended before."""
        found = self.processes()
        while waits and found and time.monotonic() < until:
            time.sleep(4 * LOOK)
            found = self.processes()
        return found

    def victims(self):
        """Processes of the kill's victim that exist now, in the order of their pids."""
        kill, found = self.kill, self.processes()
        by_pid = {process.pid: process for process in found}
        launcher = by_pid.get(self._process.pid)
        if launcher and launcher.name not in ("lockstep", "mpirun"):
            launcher = None  # a shell still

        def is_rank(process):
            parent = by_pid.get(process.parent)
            if kill.launcher == "run" and not self.hosts:
                return launcher and parent is launcher and process.name != "lockstep-guard"
            return process.rank is not None and (parent is None or parent.rank is None)

        def is_child(process):
            return process.parent in by_pid and is_rank(by_pid[process.parent])

        def is_other_launcher(process):
            """Whether it has the words of the second host's launcher, as a child has that it forked and that has executed nothing yet."""
            return process is not None and "--end-with-stdin" in words_of(process.pid, "cmdline")

        choice = {
            "rank": is_rank,
            "ranks": is_rank,
            "launcher": lambda process: process is launcher,
            "guardian": lambda process: process.name == "lockstep-guard",
            "launcher and guardian": lambda process: process is launcher or process.name == "lockstep-guard",
            "other launcher": lambda process: is_other_launcher(process) and process.name != "lockstep-guard"
            and not is_other_launcher(by_pid.get(process.parent)),
            "child": lambda process: process.name == "bench_victim" and is_child(process),
        }[kill.victim]
        return [process for process in found if choice(process)]

    def has_ended(self):
        return self.exit_code is not None and state_of(self._process.pid) is None

    def end(self):
        """Ends what is left of a job that failed, this job's processes only."""
        for _ in range(100):
            left = self.processes()
            if not left:
                break
            for process in left:
                send(process.pid, "CONT", self.marker)
                send(process.pid, "KILL", self.marker)
            time.sleep(0.02)
        self._process.wait()

    # Files

    def files_left(self):
        """Names that should not be there any more: Lockstep's, and OpenMPI's own."""
        names = sorted(f"{name}/{entry.name}" for name in ("tmp", "shm") for entry in (self.folder / name).iterdir())
        openmpi = [name for name in names if OF_OPENMPI.match(name.split("/")[1])]
        # `lockstep run` and its guardian remove the flight record of a killed rank. Without them, or if they
        # are killed too, it stays until the next `lockstep status`.
        if not re.match("(lockstep )?run", self.kill.launcher) or self.kill.victim == "launcher and guardian":
            openmpi += [name for name in names if name.endswith(".flight")]
        ours = [name for name in names if name not in openmpi]
        expected = {"checkpoints"} if self.kill.mode == "restart" else {"logs"} if self.kill.logs else set()
        ours += sorted(f"run/{entry.name}" for entry in (self.folder / "run").iterdir() if entry.name not in expected)
        return ours, openmpi

    def checkpoints(self):
        folder = self.folder / "run" / "checkpoints"
        return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []

    def row(self, problem, **more):
        """The job's row of a table. Its files stay if there is a problem."""
        row = {"case": self.kill, "problem": problem, "err": self.err, **more}
        if not problem:
            self.remove()
        return row

    def remove(self):
        with contextlib.suppress(OSError):
            shutil.rmtree(self.folder)


_references, _locks, _guard = {}, {}, threading.Lock()


def reference(key, make_job, limit):
    """Digest and number of checkpoints of a job when it is left alone for so many seconds. Jobs of one key have the same."""
    with _guard:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        if key not in _references:
            job = make_job()
            _references[key] = job.digest(time.monotonic() + limit), len(job.checkpoints())
            job.remove()
        return _references[key]


def folder_of(options, name):
    folder = pathlib.Path(options.work) / name.replace("/", "-")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
