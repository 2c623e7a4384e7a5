"""Ranks on several hosts, over TCP and over MPI: results, groups, and errors. Hosts are simulated: LOCKSTEP_HOST names the host of
each rank, or each host is a network namespace.

    hosts_test.py FOLDER          the program of a rank that mpirun has started; its files are in FOLDER
    hosts_test.py --over-tcp      starts ranks itself
    hosts_test.py --by-torchrun   the program of a rank that torchrun has started
"""

import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time
import unittest

import torch
import torch.distributed as dist

import collectives_test
import errors_test
import lockstep_torch  # noqa: F401: registers the backend
import ranks
from ranks import raises

MPIEXEC = os.environ.get("LOCKSTEP_MPIEXEC", "")
OVER_TCP, BY_TORCHRUN = "--over-tcp", "--by-torchrun"
OFFER = "lockstep/offer"  # the key of rank 0's addresses


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
    """PyTorch's ranks are not those of MPI: every rank raises the same error, and may try again. With a store, they need no MPI."""
    other = (rank + 1) % size
    raises(dist.DistBackendError, [f"rank 0 of {size} of the launcher is rank 1 of {size} in PyTorch"],
           lambda: dist.init_process_group("lockstep", rank=other, world_size=size))
    dist.init_process_group("lockstep", init_method=f"file://{folder}/ranks", rank=other, world_size=size)
    groups(other, size)
    dist.destroy_process_group()


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


def training(rank, size, text="topk:0.2"):
    """DDP gives all ranks the same parameters. Returns them."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 5))
    if text:
        strategy = lockstep_torch.Strategy(text, model)
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
    return parameters


def mismatch(rank, size):
    """No rank leaves the barrier before all ranks are in it, but the error may reach a rank that still waits there."""
    def barrier_and_mismatch():
        dist.barrier()
        dist.all_gather([torch.empty(2)] * size, torch.ones(3 if rank == 1 else 2))

    raises(ValueError if rank == 1 else dist.DistBackendError, ["an input of 12 bytes, expected 8"], barrier_and_mismatch)
    raises(dist.DistBackendError, ["rank 1 got all_gather with arguments that it refused"], dist.barrier)


def everything(rank, size):
    """In three process groups, one after another. Their environment is that of the launcher."""
    for functions in ((groups, collectives_test.reductions, collectives_test.copies, collectives_test.messages),
                      (collectives_test.asynchronous, training)):
        dist.init_process_group("lockstep")
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        for function in functions:
            function(rank, size)
        dist.destroy_process_group()
    dist.init_process_group("lockstep")
    mismatch(rank, size)


def refused(rank, size):
    """One rank refuses its arguments, and the others wait for it in a stage inside their host or between hosts."""
    def barrier_and_all_reduce():
        dist.barrier(group)
        dist.all_reduce(torch.ones(1), dist.ReduceOp.BAND if rank == bad else dist.ReduceOp.SUM, group)

    for bad in range(size):
        group = dist.new_group()
        raises(ValueError if rank == bad else dist.DistBackendError, ["got ReduceOp.BAND of Float" if rank == bad else
               f"rank {bad} got all_reduce with arguments that it refused (ReduceOp.BAND of Float"], barrier_and_all_reduce)
        dist.barrier()


def by_mpirun(folder):
    torch.set_num_threads(1)
    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    different_ranks(rank, size, folder)
    everything(rank, size)
    print(f"rank {rank} passed", flush=True)


def by_torchrun():
    """The parameters are those that gloo gives, but for the order of sums."""
    torch.set_num_threads(1)
    rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    dist.init_process_group("lockstep")
    groups(rank, size)
    collectives_test.messages(rank, size)
    trained = training(rank, size, None)
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    assert torch.allclose(trained, training(rank, size, None), rtol=1e-5, atol=1e-6)
    dist.destroy_process_group()
    print(f"rank {rank} passed", flush=True)


def by_hand(rank, size):
    """A file has named the ranks to one another; now MASTER_ADDR does. The second group has the store of the first."""
    dist.destroy_process_group()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="localhost")
    everything(rank, size)


def old_offer(rank, size):
    """Rank 0 of an earlier world has left its addresses in the store: the others read the key again."""
    store = dist.distributed_c10d._get_default_store()
    first, second = dist.PrefixStore("first", store), dist.PrefixStore("second", store)
    if rank == 1:
        first.wait([OFFER])
        second.set(OFFER, first.get(OFFER))
    ranks.create_group(first, rank, size, "first", range(size))
    dist.barrier()
    if rank == 0:
        time.sleep(0.3)
    group = ranks.create_group(second, rank, size, "second", range(size))
    tensor = torch.ones(1000)
    group.allreduce([tensor]).wait()
    assert (tensor == size).all(), tensor


def rank_0_ends_first(rank, size):
    """It leaves, and its process ends, while another still waits for what it sent."""
    tensor = torch.full((1 << 20,), float(rank))
    if rank == 0:
        for other in range(1, size):
            dist.send(tensor, other)
    else:
        time.sleep(0.3)
        dist.recv(tensor, 0)
        assert (tensor == 0).all()


def ended_before_a_group(rank, size):
    dist.barrier()
    if rank == size - 1:
        os._exit(7)
    raises(dist.DistBackendError, [f"rank {size - 1} on host node1 has ended"], dist.new_group)


def descriptors_of_groups(rank, size):
    """A group's connections end when all ranks have destroyed it."""
    counts = []
    for _ in range(5):
        dist.destroy_process_group(dist.new_group())
        dist.barrier()
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[-1] == counts[1], counts


def over_tcp():
    port = str(random.randrange(10000, 32000))  # below the ports of outgoing connections

    def on_hosts(function, size=4, host=lambda rank: rank // 2, **options):
        print(function.__name__, time.monotonic(), flush=True)
        ranks.run(function, size, before=lambda rank: os.environ.update(LOCKSTEP_HOST=f"node{host(rank)}", MASTER_PORT=port), **options)

    on_hosts(by_hand)
    on_hosts(by_hand, size=3)
    on_hosts(old_offer)
    on_hosts(rank_0_ends_first)
    on_hosts(descriptors_of_groups)
    on_hosts(refused)
    on_hosts(refused, size=3, host=lambda rank: rank % 2)
    on_hosts(errors_test.timeout, size=2, host=lambda rank: rank)
    on_hosts(errors_test.killed, ends=(3,))
    on_hosts(ended_before_a_group, ends=(3,))


class HostsTest(unittest.TestCase):
    def test_over_tcp(self):
        # In a process of its own: forked ranks inherit the variables that an earlier test has read.
        done = subprocess.run([sys.executable, __file__, OVER_TCP], capture_output=True, text=True, timeout=200)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_by_torchrun(self):
        """Two agents, each in a network namespace."""
        sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench" / "faults"))
        import hosts

        rendezvous = {"static": ["--master-addr", "10.77.0.1", "--master-port", "29531"],
                      "c10d": ["--rdzv-backend", "c10d", "--rdzv-id", "job", "--rdzv-endpoint", "10.77.0.1:29532", "--rdzv-conf"]}
        with tempfile.TemporaryDirectory() as folder:
            try:
                two_hosts = hosts.TwoHosts(pathlib.Path(folder))
            except hosts.Unavailable as why:
                self.skipTest(str(why))
            self.addCleanup(two_hosts.close)
            for name, arguments in rendezvous.items():
                agents = [subprocess.Popen(
                    ["ip", "netns", "exec", two_hosts.name(number), sys.executable, "-m", "torch.distributed.run", "--nnodes", "2",
                     "--node-rank", str(number - 1), "--nproc-per-node", "2", "--local-addr", f"10.77.0.{number}", *arguments,
                     *([f"is_host={2 - number}"] if name == "c10d" else []), __file__, BY_TORCHRUN],
                    env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "link0"},
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for number in (1, 2)]
                text = "".join(agent.communicate(timeout=200)[0] for agent in agents)
                with self.subTest(name):
                    self.assertEqual(sorted(re.findall(r"rank \d passed", text)), [f"rank {rank} passed" for rank in range(4)], text)

    @unittest.skipUnless(is_openmpi(), "LOCKSTEP_MPIEXEC is no mpirun of OpenMPI")
    def test_without_the_library_of_mpi(self):
        """Ranks of one host need none, and ranks on several hosts use TCP."""
        program = ("import lockstep_torch, torch.distributed as dist; lockstep_torch._versions.mpi = 'libmpi.absent'; "
                   "dist.init_process_group('lockstep'); print('joined')")
        for host in ("a", "$OMPI_COMM_WORLD_RANK"):
            done = subprocess.run(mpirun(2, host, "-c", program), capture_output=True, text=True, timeout=200)
            self.assertEqual(done.stdout.count("joined"), 2, done.stdout + done.stderr)

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
    if sys.argv[1] == OVER_TCP:
        over_tcp()
    elif sys.argv[1] == BY_TORCHRUN:
        by_torchrun()
    else:
        by_mpirun(sys.argv[1])
