"""What a random kill does, drawn from the seed, the mode and its number alone."""

import dataclasses
import random
import signal

# Seconds from the signal until no process of the job may be left. In restart a job has to be run to
# its end once more; mpirun starts and ends slowly, and a cut link is found by its heartbeat.
LIMITS = {"light": 15, "training": 15, "restart": 30, "mpirun": 30, "two-hosts": 30}
MODES = list(LIMITS)

ENDING = ["KILL", "SEGV", "TERM", "INT", "STOP KILL"]
ACTIONS = [*ENDING, "STOP CONT"]
LONGEST_STOP = 0.6  # seconds

# Victims of a mode, and how often each is drawn.
OF_RUN = {"rank": 8, "ranks": 4, "launcher": 4, "guardian": 2, "child": 2, "launcher and guardian": 1}
OF_MPIRUN = {"rank": 8, "ranks": 4, "launcher": 4, "child": 2}
VICTIMS = {
    "light": OF_RUN,
    "training": OF_RUN,
    "restart": OF_RUN,
    "mpirun": OF_MPIRUN,
    "two-hosts": {**OF_RUN, "other launcher": 4, "link": 2},
}


@dataclasses.dataclass
class Kill:
    mode: str
    number: int
    seed: int
    launcher: str  # run or mpirun
    ranks: int
    backend: str
    train: bool
    child: str
    logs: bool
    victim: str
    action: str
    stop: float  # seconds from a STOP to what follows it
    phase: str  # start: since the victim exists; joined: since all ranks have; done: since one is
    delay: float  # seconds in that phase
    pick: float  # 0 to 1: which of several victims

    @property
    def name(self):
        return f"{self.mode}/{self.number}"

    @property
    def job(self):
        """What decides the bits of an undisturbed job."""
        return self.mode == "two-hosts", self.launcher, self.ranks, self.backend, self.train

    @property
    def harmless(self):
        """Whether the job is to go on as if nothing had happened."""
        return self.action == "STOP CONT" or self.victim in ("guardian", "child")

    @property
    def signal(self):
        """The one that ends the victim."""
        return signal.Signals[f"SIG{self.action.split()[-1]}"]

    def __str__(self):
        what = "cut" if self.victim == "link" else self.action
        pause = f" ({self.stop:.2f} s)" if " " in self.action and self.victim != "link" else ""
        return (f"{self.name}: {what}{pause} of the {self.victim}, {self.delay:.3f} s after {self.phase}; "
                f"{self.launcher}, {self.ranks} ranks, {self.backend}, "
                f"{'training' if self.train else 'collectives'}, child {self.child}")


def draw(mode, number, seed):
    """The kill of that number. Another seed, mode or number gives another one."""
    chance = random.Random(f"{seed}/{mode}/{number}")
    victims = VICTIMS[mode]
    victim = chance.choices(list(victims), list(victims.values()))[0]
    by_run = mode != "mpirun"
    launcher = "run" if by_run else "mpirun"
    backend = "hierarchical" if mode == "two-hosts" else "host" if by_run else chance.choice(["host", "mpi"])
    # A child that stays is ended by `lockstep run`; mpirun ends no descendants of its ranks.
    child = chance.choice(["none", "worker", "stays"] if by_run else ["none", "worker"])
    if victim == "child" and child == "none":
        child = "worker"
    action = "KILL" if victim in ("launcher and guardian", "link") else chance.choice(ACTIONS)
    if victim == "launcher and guardian" and child == "stays":
        child = "worker"  # the guardian is what ends it
    # On two hosts, the first rank's last line may arrive after the job's end.
    phase = chance.choices(["start", "joined", "done"], [3, 5, 0 if mode == "two-hosts" else 2])[0]
    if victim == "child":
        phase = "joined"
    longest = {"start": 0.5, "joined": 0.4, "done": 0.02}[phase]
    return Kill(mode=mode, number=number, seed=seed, launcher=launcher,
                ranks=3 if mode == "two-hosts" else chance.choice([2, 3]), backend=backend,
                train=mode in ("training", "restart") or (mode in ("mpirun", "two-hosts") and chance.random() < 0.4),
                child=child, logs=mode == "light" and chance.random() < 0.5, victim=victim,
                action=action, stop=chance.uniform(0.02, LONGEST_STOP), phase=phase,
                delay=chance.uniform(0, longest), pick=chance.random())
