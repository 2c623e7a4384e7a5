"""PyTorch's rendezvous "env://" for ranks that mpirun has started."""

import os
import socket
import sys
import urllib.parse

import torch.distributed as dist

import lockstep_torch

# torch.distributed.rendezvous is the function of this module.
_handlers = sys.modules[dist.rendezvous.__module__]._rendezvous_handlers
_of_environment = _handlers["env"]


def _reachable(addresses, port, seconds):
    """The first address at which the port accepts a connection."""
    for address in addresses:
        try:
            socket.create_connection((address, port), seconds).close()
            return address
        except OSError:
            pass
    raise dist.DistNetworkError(
        f"lockstep init: cannot connect to rank 0 at port {port} of {', '.join(addresses)}; set LOCKSTEP_INTERFACE to the "
        "network interface between the hosts, or MASTER_ADDR and MASTER_PORT to an address of rank 0")


def _env(url, timeout=dist.constants.default_pg_timeout, **options):
    """As PyTorch's own handler, except that rank and world size default to those of mpirun. Without MASTER_ADDR and
    MASTER_PORT, rank 0 makes the store at a free port, and the ranks exchange its address."""
    arguments = dict(urllib.parse.parse_qsl(urllib.parse.urlparse(url).query))
    has_address = "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ
    by_environment = "RANK" in os.environ or "WORLD_SIZE" in os.environ
    try:
        launched = None if by_environment else lockstep_torch._load().launched_by_mpi()
    except ImportError:  # the rendezvous may be another backend's; a group of Lockstep raises it again
        launched = None
    if launched is None:
        yield from _of_environment(url, timeout=timeout, **options)
        return
    rank, size = (int(arguments.get(name, default)) for name, default in zip(("rank", "world_size"), launched))
    if has_address:
        yield from _of_environment(f"env://?rank={rank}&world_size={size}", timeout=timeout, **options)
        return
    store = None
    if launched[0] == 0:
        store = dist.TCPStore("0.0.0.0", 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
    port, addresses = lockstep_torch._load().addresses_from_rank_0(rank, size, store.port if store else 0, timeout.total_seconds())
    if store is None:
        address = _reachable(addresses, port, min(5, timeout.total_seconds()))
        store = dist.TCPStore(address, port, size, is_master=False, timeout=timeout, wait_for_workers=False)
    yield store, rank, size
    raise RuntimeError("lockstep: a second rendezvous of the same ranks is not possible; call init_process_group() again")


def register():
    _handlers["env"] = _env
