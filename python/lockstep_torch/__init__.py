"""Lockstep as a backend of torch.distributed:

    torch.distributed.init_process_group("lockstep")

PyTorch imports this module at `import torch` where the wheel is installed. It registers the backend and loads no library. The
library is loaded by the first process group, or by the first use of a name of this module.
"""

import atexit
import contextlib
import ctypes
import functools
import os
import warnings

from lockstep_torch import _versions

__all__ = ["Strategy", "__version__", "strategy_hook"]
__version__ = _versions.lockstep


@functools.cache
def _load():
    """The library. Raises ImportError for another PyTorch: its C++ interface differs between minor versions."""
    import torch

    if _versions.minor(torch.__version__) != _versions.minor(_versions.torch):
        raise ImportError(
            f"lockstep_torch: got torch {torch.__version__}, expected torch {_versions.minor(_versions.torch)}, which lockstep_torch "
            "was built with; install that version, or build lockstep_torch with this one")
    # DistributedDataParallel allocates its gradient buckets in memory of the process group, where ranks read them in place, only
    # with this variable. With GPUs it would also change the buckets of NCCL.
    if torch.cuda.device_count() == 0:
        os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
    # Before the library, which binds MPI's functions when it is loaded. Only ranks on several hosts use them.
    if _versions.mpi and not os.environ.keys().isdisjoint(("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")):
        with contextlib.suppress(OSError):
            ctypes.CDLL(_versions.mpi, ctypes.RTLD_GLOBAL)
    from lockstep_torch import _backend

    # Callbacks of futures may run on threads of the process groups, which must end before the interpreter does.
    atexit.register(_backend.stop_groups)
    return _backend


def __getattr__(name):
    if name not in ("Strategy", "strategy_hook"):
        raise AttributeError(f"module 'lockstep_torch' has no attribute {name!r}")
    _load()
    from lockstep_torch import strategy

    return getattr(strategy, name)


def _create_process_group(options, _):
    """options: PyTorch's _DistributedBackendOptions. It lists no ranks for the default group."""
    return _load().create_process_group(options.store, options.group_rank, options.group_size, options.timeout.total_seconds(),
                                        name=options.group_id, ranks=options.global_ranks_in_group)


def _register():
    """Registers the backend. An entry point of PyTorch: an exception would make `import torch` fail."""
    try:
        import torch.distributed as dist

        if dist.is_available() and not hasattr(dist.Backend, "LOCKSTEP"):
            dist.Backend.register_backend("lockstep", _create_process_group, extended_api=True, devices=["cpu"])
            from lockstep_torch import env_rendezvous

            env_rendezvous.register()
    except Exception as error:  # noqa: BLE001
        warnings.warn(f'lockstep_torch: the backend "lockstep" is not registered: {error}', stacklevel=2)


# PyTorch calls _register() within this import if it has not been imported before, so all names are defined above.
import torch  # noqa: E402, F401

_register()
