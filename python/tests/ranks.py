"""Starts ranks of a process group as forked processes."""

import datetime
import multiprocessing
import multiprocessing.connection
import os
import tempfile
import traceback
import warnings

import torch
import torch._dynamo  # noqa: F401: DDP imports it, which takes seconds; once here, not in every rank
import torch.distributed as dist

import lockstep_torch

LIMIT_SECONDS = 100


def _rank(function, backend, rank, size, path, results, before, options):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of functions that PyTorch will rename
    try:
        before(rank)
        dist.init_process_group(backend, init_method=f"file://{path}", rank=rank, world_size=size, **options)
        result = function(rank, size)
        if backend == "gloo":
            # Gloo's destructor may run on its own thread, which then joins itself and terminates the process.
            results.put((rank, result, None))
            os._exit(0)
        dist.destroy_process_group()
        results.put((rank, result, None))
    except BaseException:  # the parent raises it
        results.put((rank, None, traceback.format_exc()))


def run(function, size=2, backend="lockstep", ends=(), before=lambda rank: None, **options):
    """Calls function(rank, size) in every rank of a world, and returns the results by rank. options are those of
    init_process_group(); each rank calls before(rank) first. The ranks in `ends` end their processes and have the result None.
    Raises AssertionError with the traceback of each rank that raised an exception."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        ranks = [context.Process(target=_rank, args=(function, backend, rank, size, path, results, before, options))
                 for rank in range(size)]
        for rank in ranks:
            rank.start()
        got = {}
        errors = []
        for _ in range(size - len(ends)):
            # A rank that ends without a result has closed no queue: look whether it still runs.
            for _ in range(LIMIT_SECONDS * 100):
                if not results.empty() or not any(rank.is_alive() for rank in ranks):
                    break
                multiprocessing.connection.wait([rank.sentinel for rank in ranks if rank.is_alive()]
                                                + [results._reader], timeout=0.01)
            if results.empty():
                errors.append("a rank gave no result in time")
                break
            rank, result, error = results.get()
            got[rank] = result
            if error:
                errors.append(f"rank {rank}: {error}")
        for rank in ranks:
            rank.join(5)
            if rank.is_alive():
                errors.append("a rank did not end")
                rank.kill()
                rank.join()
    if errors:
        raise AssertionError("\n".join(errors))
    return [got.get(rank) for rank in range(size)]


def test(function, *sizes, **options):
    """A test that runs the function in worlds of these sizes, as run() does."""
    def run_all(_):
        for size in sizes:
            run(function, size, **options)

    return run_all


def create_group(store, rank, size, name="", members=()):
    """The backend of a group, without PyTorch's own steps. members: ranks of the default group; () makes a default group."""
    options = dist.distributed_c10d._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size = store, rank, size
    options.group_id, options.global_ranks_in_group = name, list(members)
    options.timeout = datetime.timedelta(seconds=30)
    return lockstep_torch._create_process_group(options, None)


def raises(kind, texts, function):
    """Calls function(), which must raise an exception of that kind with all texts in its message."""
    try:
        function()
    except kind as error:
        for text in texts:
            assert text in str(error), f"got {error!r}, expected {text!r} in it"
        return
    raise AssertionError(f"got no exception, expected {kind.__name__}")
