"""Lockstep as a backend of torch.distributed:

    import lockstep_torch
    torch.distributed.init_process_group("lockstep")
"""

import atexit
import os

import torch
import torch.distributed as dist

from lockstep_torch import _torch_version

__all__ = ["Strategy", "__version__", "strategy_hook"]


def _expect_torch():
    """The C++ interface of PyTorch's backends differs between minor versions."""
    if not dist.is_available():
        raise ImportError("lockstep_torch: this PyTorch has no torch.distributed; install another build of PyTorch")
    if _torch_version.minor(torch.__version__) != _torch_version.minor(_torch_version.built_with):
        raise ImportError(
            f"lockstep_torch: got torch {torch.__version__}, expected torch {_torch_version.minor(_torch_version.built_with)}, "
            "which lockstep_torch was built with; install that version, or build lockstep_torch with this one")


_expect_torch()

# DistributedDataParallel allocates its gradient buckets in memory of the process group, where ranks read them in place, only
# with this variable. With CUDA it would also change the buckets of NCCL.
if torch.version.cuda is None:
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")

from lockstep_torch import _backend, env_rendezvous  # noqa: E402: they cannot be loaded with another torch
from lockstep_torch.strategy import Strategy, strategy_hook  # noqa: E402

__version__ = _backend.__version__


def _create_process_group(options, _):
    """options: PyTorch's _DistributedBackendOptions. It lists no ranks for the default group."""
    return _backend.create_process_group(options.store, options.group_rank, options.group_size, options.timeout.total_seconds(),
                                         name=options.group_id, ranks=options.global_ranks_in_group)


def _register():
    """Registers the backend. PyTorch also calls it as an entry point, before or after the import."""
    if not hasattr(dist.Backend, "LOCKSTEP"):
        dist.Backend.register_backend("lockstep", _create_process_group, extended_api=True, devices=["cpu"])
        env_rendezvous.register()


_register()
# Callbacks of futures may run on threads of the process groups, which must end before the interpreter does.
atexit.register(_backend.stop_groups)
