"""Lockstep's strategies as communication hooks of DistributedDataParallel."""

import torch
import torch.distributed as dist

from lockstep_torch import _backend

_DDP = torch.nn.parallel.DistributedDataParallel


class Strategy:
    """The state of strategy_hook() for one DistributedDataParallel model:

        ddp.register_comm_hook(lockstep_torch.Strategy("topk:0.01", ddp), lockstep_torch.strategy_hook)

    text: a strategy that exchanges gradients, as in C++: "fp32", "int8", "topk:0.01", "warmup:100:power_sgd:rank=4".
    model: the DistributedDataParallel model. Its process group exchanges the gradients, and errors and state_dict() have
    the names of its parameters. Without it, the default process group exchanges them, and parameters are numbered from the
    end of the model, as in "float32[-1]".

    Raises ValueError for another text, and TypeError for another model.
    """

    def __init__(self, text, model=None):
        if model is not None and not isinstance(model, _DDP):
            raise TypeError(f"Strategy: got a model of type {type(model).__name__}, expected DistributedDataParallel")
        self._group = None if model is None else model.process_group
        self._hook = _backend.StrategyHook(text, [] if model is None else list(model.module.named_parameters()))

    def __repr__(self):
        return f"Strategy({self.text!r})"

    def __reduce__(self):
        raise TypeError("Strategy: cannot be pickled, because it belongs to a model; save state_dict() instead")

    @property
    def text(self):
        """The strategy with its options, such as "topk:0.01"."""
        return self._hook.text

    def _process_group(self):
        return dist.distributed_c10d._get_default_group() if self._group is None else self._group

    def state_dict(self):
        """The state of this rank: the number of steps, and residuals and other tensors by names of parameters. Each rank
        has an entry of its own, "rank0", "rank1" and so on, so torch.distributed.checkpoint saves those of all ranks."""
        group = self._process_group()
        # torch.distributed.checkpoint loads a tuple as a whole. A Strategy before its first step does not know its tensors.
        return {"strategy": self.text, "step": self._hook.step(), "ranks": group.size(),
                f"rank{group.rank()}": tuple(self._hook.state().items())}

    def load_state_dict(self, state_dict):
        """Loads what state_dict() returned on this rank. For another number of ranks, pass the entries of all saved ranks:
        each rank adds the residuals of several ranks, so that their sum stays. Names that do not fit the model are a
        ValueError of the next backward.

        Raises ValueError if an entry that this rank needs is missing, or a residual has other sizes than its parameter.
        """
        group = self._process_group()
        rank, size = group.rank(), group.size()
        saved = state_dict["ranks"]
        # What is no residual is equal on all ranks.
        needed = [rank] if saved == size else list(range(rank, saved, size)) or [0]
        for other in needed:
            if f"rank{other}" not in state_dict:
                raise ValueError(
                    f"lockstep strategy: load_state_dict() on rank {rank} of {size} got no entry rank{other} of the state of "
                    f"{saved} ranks, expected the entries {', '.join(f'rank{r}' for r in needed)}; load the file that this rank "
                    "saved, or those of all ranks together")
        state = {}
        for other in needed:
            for name, values in state_dict[f"rank{other}"]:
                if not name.endswith(".residual"):
                    state.setdefault(name, values)
                elif other >= size and name in state:
                    state[name] = state[name] + values
                else:
                    state[name] = values if other % size == rank else torch.zeros_like(values)
        self._hook.load(state_dict["step"], state)


def strategy_hook(state: Strategy, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook that exchanges gradients by a Strategy, for DistributedDataParallel.register_comm_hook()."""
    if not isinstance(state, Strategy):
        raise TypeError(f"strategy_hook: got a state of type {type(state).__name__}, expected Strategy; pass Strategy(text, model) "
                        "as the first argument of register_comm_hook()")
    backend = state._process_group()._get_backend(torch.device("cpu"))
    # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps the backend.
    wrapper = getattr(dist, "_ProcessGroupWrapper", None) or getattr(dist.distributed_c10d, "_ProcessGroupWrapper", None)
    if wrapper is not None and isinstance(backend, wrapper):
        backend = backend.wrapped_pg
    return state._hook.exchange(backend, bucket)
