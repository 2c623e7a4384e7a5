"""Starts ranks again and again, of which one may end at any moment, and expects that every rank ends in time and none crashes.

    PYTHONPATH=build/python python3 python/tests/hang_loop.py [--rounds 25] [--ranks 4] [--seed 0]

Ranks are forked after PyTorch and lockstep_torch have been imported, issue a random program of operations, and end as
processes do: with Python's own steps at the end of an interpreter. In most rounds one rank ends early, in one of WAYS. The other
ranks must complete their programs or raise an exception of torch.distributed. Prints each round whose ranks did not, with the seed that
repeats it, and exits with 1 then.
"""

import argparse
import datetime
import faulthandler
import os
import random
import signal
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist

import lockstep_torch  # noqa: F401: registers the backend

LIMIT_SECONDS = 30
GROUP_TIMEOUT = datetime.timedelta(seconds=8)


def all_reduce(rank, size, random_size):
    tensor = torch.full((random_size,), float(rank))
    dist.all_reduce(tensor)
    assert tensor[-1] == sum(range(size)), tensor


def many_at_once(rank, size, random_size):
    works = [dist.all_reduce(torch.ones(random_size), async_op=True) for _ in range(8)]
    for work in reversed(works):
        work.wait()


def chained(rank, size, random_size):
    """A callback that waits for another operation."""
    future = dist.all_reduce(torch.ones(random_size), async_op=True).get_future()
    future.then(lambda done: dist.all_reduce(done.value()[0].clone(), async_op=True).get_future().wait()).wait()


def in_threads(rank, size, random_size):
    works = [dist.all_reduce(torch.ones(random_size), async_op=True) for _ in range(4)]
    threads = [threading.Thread(target=wait_quietly, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for work in works:
        work.wait()


def wait_quietly(work):
    try:
        work.wait()
    except (RuntimeError, ValueError):
        pass  # the caller waits, too


def ring(rank, size, random_size):
    tensor = torch.empty(random_size)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(random_size), (rank + 1) % size),
                                        dist.P2POp(dist.irecv, tensor, (rank - 1) % size)]):
        work.wait()


def another_group(rank, size, random_size):
    group = dist.new_group(timeout=GROUP_TIMEOUT)
    dist.all_reduce(torch.ones(random_size), group=group)
    if random_size % 2:
        dist.destroy_process_group(group)


OPERATIONS = (all_reduce, many_at_once, chained, in_threads, ring, another_group)


def end_with_pending_operations():
    sys.kept = [dist.all_reduce(torch.ones(1000), async_op=True), dist.group.WORLD.recv_anysource([torch.ones(1)], 3)]


def end_with_waiting_threads():
    work = dist.group.WORLD.recv_anysource([torch.ones(1)], 3)
    for _ in range(2):
        threading.Thread(target=wait_quietly, args=(work,), daemon=True).start()


def end_by_exception():
    raise ArithmeticError("the rank's program failed")


def end_after_fork():
    faulthandler.cancel_dump_traceback_later()  # its thread is not in the child
    child = os.fork()
    return 0 if child == 0 or os.waitpid(child, 0)[1] == 0 else 5


# How a rank ends early: what it calls before it exits with the result, and the status that os.waitpid() returns. "at once": the
# parent kills the rank at some time.
WAYS = {
    "not": (None, 0),
    "at once": (None, signal.SIGKILL),
    "by signal": (lambda: os.kill(os.getpid(), signal.SIGKILL), signal.SIGKILL),
    "by os._exit": (lambda: os._exit(7), 7 << 8),
    "with pending operations": (end_with_pending_operations, 0),
    "with waiting threads": (end_with_waiting_threads, 0),
    "after destroy": (dist.destroy_process_group, 0),
    "by an exception": (end_by_exception, 1 << 8),
    "after a fork": (end_after_fork, 0),
}


def run_rank(rank, size, seed, path, way, victim):
    """The exit status of the process is 0 if the rank completed its program, or failed because of another rank."""
    os.setpgid(0, 0)
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(LIMIT_SECONDS - 5)  # where a rank hangs
    program = random.Random(seed)  # the same on all ranks
    end_step, end = program.randrange(12), WAYS[way][0]
    try:
        dist.init_process_group("lockstep", init_method=f"file://{path}", rank=rank, world_size=size, timeout=GROUP_TIMEOUT)
        for step in range(12):
            operation, count = program.choice(OPERATIONS), program.choice((1, 5, 1000, 300_000))
            if rank == victim and step == end_step and end:
                sys.exit(end())
            operation(rank, size, count)
        if (rank + seed) % 2:
            dist.destroy_process_group()
    except RuntimeError as error:
        # A future raises a RuntimeError with the text of the error in its callback.
        if way == "not" or not (isinstance(error, dist.DistError) or "DistBackendError" in str(error)):
            raise
    sys.exit(0)


def run_round(size, seed):
    """The faults of one round, as texts."""
    choice = random.Random(f"round {seed}")
    way, victim = choice.choice(list(WAYS)), choice.randrange(size)
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as folder:
        children = {}
        for rank in range(size):
            child = os.fork()
            if child == 0:
                if way == "by an exception" and rank == victim:
                    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                run_rank(rank, size, seed, os.path.join(folder, "store"), way, victim)
            children[child] = rank
        begin, faults = time.monotonic(), []
        if way == "at once":
            time.sleep(choice.random() * 0.3)
            os.kill(next(child for child, rank in children.items() if rank == victim), signal.SIGKILL)
        while children:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child in children:
                rank = children.pop(child)
                expected = WAYS[way][1] if rank == victim else 0
                # A rank may complete its program before it is killed, or fail before it ends itself.
                if status not in (expected, 0):
                    faults.append(f"rank {rank} ended with status {status}, expected {expected:d}")
            elif time.monotonic() - begin > LIMIT_SECONDS:
                for child, rank in children.items():
                    faults.append(f"rank {rank} did not end in {LIMIT_SECONDS} s")
                    os.killpg(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                children.clear()
            else:
                time.sleep(0.005)
    return [f"seed {seed}, rank {victim} ends {way}: {fault}" for fault in faults]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25, help="(default: 25)")
    parser.add_argument("--ranks", type=int, default=4, help="(default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="of the first round (default: 0)")
    args = parser.parse_args()
    begin, faults = time.monotonic(), []
    for seed in range(args.seed, args.seed + args.rounds):
        found = run_round(args.ranks, seed)
        for fault in found:
            print(fault, flush=True)
        faults += found
    print(f"hang_loop: {args.rounds} rounds of {args.ranks} ranks in {time.monotonic() - begin:.0f} s, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
