"""Ranks on several hosts over MPI: results, groups, and errors. Hosts are simulated: LOCKSTEP_HOST names the host of each rank.

    hosts_test.py FOLDER             the program of a rank that mpirun has started; its files are in FOLDER
    hosts_test.py --without-mpirun   starts two ranks itself, one a host
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist

import collectives_test
import lockstep_torch  # noqa: F401: registers the backend
import ranks
from ranks import raises

MPIEXEC = os.environ.get("LOCKSTEP_MPIEXEC", "")
WITHOUT_MPIRUN = "--without-mpirun"


def is_openmpi():
    if not MPIEXEC:
        return False
    version = subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True).stdout
    return "Open MPI" in version or "OpenRTE" in version  # its mpirun and its mpiexec


def mpirun(size, host, *arguments):
    """The command that runs Python in each rank. host: the name of the rank's host, for the shell."""
    return [MPIEXEC, "--oversubscribe", "--allow-run-as-root", "-n", str(size), "sh", "-c", f'LOCKSTEP_HOST={host} exec "$@"', "sh",
            sys.executable, *arguments]


def different_ranks(rank, size, folder):
    """PyTorch's ranks are not those of MPI: every rank raises the same error, and may try again."""
    other = (rank + 1) % size
    raises(dist.DistBackendError, [f"rank 0 of {size} of the launcher is rank 1 of {size} in PyTorch"],
           lambda: dist.init_process_group("lockstep", rank=other, world_size=size))
    raises(dist.DistBackendError, ["rank 0 is on host", f"rank 0 is rank {size - 1} of {size} of OpenMPI's mpirun"],
           lambda: dist.init_process_group("lockstep", init_method=f"file://{folder}/ranks", rank=other, world_size=size))


def groups(rank, size):
    """On one host, on several with one rank each, and on several with several ranks each."""
    for members in ([0, 1], [0, size - 1], list(range(size)), [size - 1, 1, 0]):
        group = dist.new_group(members)
        if rank not in members:
            continue
        for count in (1, 5, 100_003):
            tensor = torch.full((count,), float(rank))
            dist.all_reduce(tensor, group=group)
            assert (tensor == sum(members)).all(), (members, tensor)
        gathered = [None] * len(members)
        dist.all_gather_object(gathered, rank, group=group)
        assert gathered == sorted(members), gathered
    local = dist.new_group([rank], use_local_synchronization=True)
    dist.barrier(local)


def training(rank, size):
    """DDP gives all ranks the same parameters."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 5))
    strategy = lockstep_torch.Strategy("topk:0.2", model)
    model.register_comm_hook(strategy, lockstep_torch.strategy_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        model(torch.full((2, 20), float(rank + step))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    parameters = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    everyone = [torch.empty_like(parameters) for _ in range(size)]
    dist.all_gather(everyone, parameters)
    assert all(torch.equal(parameters, other) for other in everyone)


def mismatch(rank, size):
    """No rank leaves the barrier before all ranks are in it, but the error may reach a rank that still waits there."""
    def barrier_and_mismatch():
        dist.barrier()
        dist.all_gather([torch.empty(2)] * size, torch.ones(3 if rank == 1 else 2))

    raises(ValueError if rank == 1 else dist.DistBackendError, ["an input of 12 bytes, expected 8"], barrier_and_mismatch)
    raises(dist.DistBackendError, ["rank 1 got all_gather with arguments that it refused"], dist.barrier)


def program(folder):
    torch.set_num_threads(1)
    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    different_ranks(rank, size, folder)
    for functions in ((groups, collectives_test.reductions, collectives_test.copies, collectives_test.messages),
                      (collectives_test.asynchronous, training)):
        dist.init_process_group("lockstep")
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        for function in functions:
            function(rank, size)
        dist.destroy_process_group()
    dist.init_process_group("lockstep")
    mismatch(rank, size)
    print(f"rank {rank} passed", flush=True)


def refused(rank, size):
    raise AssertionError("the ranks made a process group")


class HostsTest(unittest.TestCase):
    def test_without_mpirun(self):
        """Every rank raises an exception that says what to do."""
        # In a process of its own: forked ranks inherit the variables that an earlier test has read.
        done = subprocess.run([sys.executable, __file__, WITHOUT_MPIRUN], capture_output=True, text=True, timeout=200)
        text = done.stderr
        self.assertEqual(text.count("DistBackendError: lockstep init: rank 0 is on host node0 and rank 1 of 2 on host node1"), 2, text)
        self.assertEqual(text.count("Start ranks on several hosts with mpirun"), 2, text)

    @unittest.skipUnless(is_openmpi(), "LOCKSTEP_MPIEXEC is no mpirun of OpenMPI")
    def test_without_the_library_of_mpi(self):
        """Ranks of one host need none; on several hosts every rank raises an exception that says what to do."""
        program = ("import lockstep_torch, torch.distributed as dist; lockstep_torch._versions.mpi = 'libmpi.absent'; "
                   "dist.init_process_group('lockstep'); print('joined')")
        for host, expected in (("a", "joined"), ("$OMPI_COMM_WORLD_RANK", "cannot use MPI: got no libmpi.so.40; install Open MPI")):
            done = subprocess.run(mpirun(2, host, "-c", program), capture_output=True, text=True, timeout=200)
            self.assertEqual(done.stdout.count(expected) + done.stderr.count(expected), 2, done.stdout + done.stderr)

    @unittest.skipUnless(is_openmpi(), "LOCKSTEP_MPIEXEC is no mpirun of OpenMPI")
    def test_by_mpirun(self):
        with tempfile.TemporaryDirectory() as folder:
            command = mpirun(3, "host$((OMPI_COMM_WORLD_RANK / 2))", __file__, folder)
            environment = {**os.environ, "LOCKSTEP_BACKEND": "hierarchical", "LOCKSTEP_INTERFACE": "lo", "OMP_NUM_THREADS": "1",
                           "OMPI_MCA_orte_tmpdir_base": folder, "OMPI_MCA_btl_vader_backing_directory": folder}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
        # print() writes the text and the end of the line one by one, and lines of two ranks mix.
        self.assertEqual(sorted(re.findall(r"rank \d passed", done.stdout)),
                         [f"rank {rank} passed" for rank in range(3)], done.stdout + done.stderr)


if __name__ == "__main__":
    if sys.argv[1] == WITHOUT_MPIRUN:
        ranks.run(refused, 2, before=lambda rank: os.environ.update(LOCKSTEP_HOST=f"node{rank}"))
    else:
        program(sys.argv[1])
