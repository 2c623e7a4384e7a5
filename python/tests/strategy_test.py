"""Strategies as communication hooks of DistributedDataParallel: results as computed from the gradients of all ranks."""

import copy
import io
import os
import pathlib
import pickle
import shutil
import tempfile
import unittest

import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms.join import Join

import lockstep_torch
import ranks
from ranks import raises
import strategy_reference as reference

DDP = nn.parallel.DistributedDataParallel
SHAPES = {"a": (40, 30), "b": (30,), "c": (30, 20), "d": (7,), "e": (700,), "f": (3, 5, 4)}


class Weighted(nn.Module):
    """The gradient of each parameter is the coefficient that the caller passes for it."""

    def __init__(self, shapes=SHAPES):
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, coefficients):
        return sum((getattr(self, name) * values).sum() for name, values in coefficients.items())


def coefficients(rank, step, names=SHAPES):
    """Some values are far larger than others, as in gradients."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    all_values = {name: torch.randn(shape, generator=generator) ** 3 for name, shape in SHAPES.items()}
    return {name: all_values[name] for name in names}


def arrays(size, step, names=SHAPES):
    return [{name: values.numpy() for name, values in coefficients(rank, step, names).items()} for rank in range(size)]


def recording(state, bucket):
    strategy, names, record = state
    record.append([names[id(parameter)] for parameter in bucket.parameters()])
    return lockstep_torch.strategy_hook(strategy, bucket)


def hooked(text, bucket_cap_mb=0.002, **options):
    """A model and its Strategy. Its hook appends the names of each bucket to model.record."""
    model = DDP(Weighted(), bucket_cap_mb=bucket_cap_mb, **options)
    strategy = lockstep_torch.Strategy(text, model)
    model.record = []
    names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    model.register_comm_hook((strategy, names, model.record), recording)
    return model, strategy


def gradients(model):
    return {name: None if parameter.grad is None else parameter.grad.numpy().copy()
            for name, parameter in model.module.named_parameters()}


def backward(model, rank, step, names=SHAPES):
    getattr(model, "record", []).clear()
    model.zero_grad()
    model(coefficients(rank, step, names)).backward()
    return gradients(model)


def expect_close(got, expected, what, tolerance=0.0):
    for name, values in expected.items():
        if not numpy.allclose(got[name], values, rtol=tolerance, atol=tolerance):
            raise AssertionError(f"{what}, {name}: got {got[name]}, expected {values}")


def expect_near(got, expected, what):
    """Compares the error with the norm of all values. An element may be far smaller than the products that it is a sum of."""
    for name, values in expected.items():
        error, norm = numpy.linalg.norm(got[name] - values), numpy.linalg.norm(values)
        if not error <= 1e-4 * norm:
            raise AssertionError(f"{what}, {name}: error {error}, norm {norm}: got {got[name]}, expected {values}")


def first_q(record, rank):
    """The matrices that power_sgd compresses, with their first random factors."""
    factors = {}
    for bucket in record:
        offset = 0
        for name in bucket:
            rows, columns = SHAPES[name][0], int(numpy.prod(SHAPES[name][1:]))
            if len(SHAPES[name]) >= 2 and (rows + columns) * rank < rows * columns:
                generator = torch.Generator().manual_seed(offset + 1)
                factors[name] = torch.empty(columns, rank).normal_(generator=generator).numpy()
            offset += rows * columns
    return factors


# The text, the reference, and the tolerance on 3 ranks, where the order of operations differs from the reference's.
# None: the reference rounds otherwise on any number of ranks, and processors differ, too. tests/sync tests every strategy; these
# differ in the number of collectives, in their state, and in what they need of a backward.
STRATEGIES = [
    ("fp32", lambda _: reference.Fp32(feedback=False), 1e-6),
    ("int8", lambda _: reference.Int8(), 0),
    ("topk:0.1", lambda _: reference.top_k(0.1), 0),
    ("topk:0.1,feedback=off", lambda _: reference.top_k(0.1, feedback=False), 0),
    ("threshold:3", lambda _: reference.Threshold(3), 1e-6),
    ("partial_update:of=gradients", lambda _: reference.PartialUpdate(), 1e-6),
    ("adasum:of=gradients", lambda _: reference.Adasum(), None),
    ("power_sgd:rank=2", lambda record: reference.PowerSgd(first_q(record, 2)), None),
    ("warmup:2:topk:0.05", lambda _: reference.Warmup(2, reference.top_k(0.05)), 1e-6),
    ("warmup:1:warmup:2:int8", lambda _: reference.Warmup(3, reference.Int8()), 1e-6),
]


def results(rank, size):
    """DDP distributes the parameters over other buckets after the first backward."""
    for text, make, tolerance in STRATEGIES:
        model, strategy = hooked(text)
        expected = None
        layouts = []
        for step in range(5):
            got = backward(model, rank, step)
            layouts.append([list(bucket) for bucket in model.record])
            expected = expected or make(layouts[0])
            wanted = expected(step, layouts[-1], arrays(size, step))[rank]
            if tolerance is None:
                expect_near(got, wanted, f"{text} at step {step}")
            else:
                expect_close(got, wanted, f"{text} at step {step}", tolerance if size == 3 else 0)
        assert len(layouts[0]) == 1 and len(layouts[1]) > 2 and layouts[1] == layouts[4], layouts
        assert strategy.state_dict()["step"] == 5


def plain(rank, size):
    """fp32 has the bits of DDP without a hook."""
    def trained(hook):
        torch.manual_seed(0)
        model = DDP(nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)), bucket_cap_mb=0.001)
        if hook:
            model.register_comm_hook(lockstep_torch.Strategy("fp32"), lockstep_torch.strategy_hook)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        for step in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 20, generator=torch.Generator().manual_seed(10 * step + rank))).square().mean().backward()
            optimizer.step()
        return nn.utils.parameters_to_vector(model.parameters())

    assert torch.equal(trained(True), trained(False))


def options_of_ddp(rank, size):
    for options in ({"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True},
                    {"static_graph": True, "gradient_as_bucket_view": True}):
        model, _ = hooked("topk:0.1", **options)
        expected = reference.top_k(0.1)
        for step in range(4):
            got = backward(model, rank, step)
            expect_close(got, expected(step, model.record, arrays(size, step))[rank], f"{options} at step {step}")


def accumulated(rank, size):
    for options in ({}, {"gradient_as_bucket_view": True}):
        model, _ = hooked("topk:0.1", **options)
        expected = reference.top_k(0.1)
        for step in range(4):
            with model.no_sync():
                backward(model, rank, 2 * step)
            assert not model.record
            model(coefficients(rank, 2 * step + 1)).backward()
            sums = [{name: one[name] + two[name] for name in one}
                    for one, two in zip(arrays(size, 2 * step), arrays(size, 2 * step + 1))]
            expect_close(gradients(model), expected(step, model.record, sums)[rank], f"no_sync {options} at step {step}")


def total_residual(strategy, rank, name):
    total = dict(strategy.state_dict()[f"rank{rank}"])[f"{name}.residual"]
    dist.all_reduce(total)
    return total.numpy()


def unused(rank, size):
    # A parameter that the last rank does not use.
    model, _ = hooked("topk:0.1", find_unused_parameters=True)
    expected = reference.top_k(0.1)
    for step in range(3):
        all_arrays = arrays(size, step)
        all_arrays[size - 1]["c"] *= 0
        got = backward(model, rank, step, [name for name in SHAPES if rank < size - 1 or name != "c"])
        expect_close(got, expected(step, model.record, all_arrays)[rank], f"unused on one rank at step {step}")
    # One that no rank uses: its residual stays as it is, although DDP puts an old gradient into the bucket.
    for text, tolerance in (("topk:0.3", 1e-4), ("threshold:2", 1e-4), ("power_sgd:rank=1", 1e-3)):
        for zeroed in (True, False):
            model, strategy = hooked(text, find_unused_parameters=True)
            backward(model, rank, 0)
            before, mean = total_residual(strategy, rank, "c"), model.module.c.grad.clone()
            assert abs(before).sum() > 0
            for step in range(1, 4):
                if zeroed:
                    model.zero_grad()
                else:
                    model.module.a.grad = None
                model(coefficients(rank, step, ["a"])).backward()
                expect_close({"c": total_residual(strategy, rank, "c")}, {"c": before}, f"{text}, unused", tolerance)
            if zeroed:
                assert model.module.c.grad is None
            else:
                assert torch.equal(model.module.c.grad, mean)
    # DDP skips buckets, among them the last one.
    model, strategy = hooked("topk:0.1", find_unused_parameters=True, skip_all_reduce_unused_params=True)
    expected = reference.top_k(0.1)
    for step in range(4):
        names = list(SHAPES) if step % 2 else ["e", "f"]
        got = backward(model, rank, step, names)
        assert all(set(bucket) & set(names) for bucket in model.record), model.record
        all_arrays = arrays(size, step)
        for own in all_arrays:
            for name in set(SHAPES) - set(names):
                own[name] *= 0
        wanted = expected(step, model.record, all_arrays)[rank]
        expect_close(got, {name: wanted[name] for name in names}, f"skipped buckets at step {step}")
        assert strategy.state_dict()["step"] == step + 1


def joined(rank, size):
    """A rank without inputs takes part with gradients of zero."""
    model, _ = hooked("int8")
    expected = reference.Int8()
    with Join([model]):
        for step in range(1 + rank):
            got = backward(model, rank, step)
            all_arrays = arrays(size, step)
            for other in range(step):
                for name in SHAPES:
                    all_arrays[other][name] *= 0
            expect_close(got, expected(step, model.record, all_arrays)[rank], f"Join at step {step}", 0 if size < 3 else 1e-6)


def through_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)  # weights_only


def saved_and_loaded(rank, size):
    box = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(box, 0)
    for text in ("topk:0.1", "power_sgd:rank=2", "int8", "threshold:3", "warmup:2:topk:0.05"):
        make, tolerance = next((make, tolerance) for known, make, tolerance in STRATEGIES if known == text)
        expect = expect_near if tolerance is None else expect_close
        model, strategy = hooked(text)
        expected = None
        for step in range(3):
            backward(model, rank, step)
            expected = expected or make(model.record)
            expected(step, model.record, arrays(size, step))
        folder = os.path.join(box[0], text)
        dcp.save({"strategy": strategy}, checkpoint_id=folder)
        for load in (lambda resumed: resumed.load_state_dict(strategy.state_dict()),
                     lambda resumed: resumed.load_state_dict(through_file(strategy.state_dict())),
                     lambda resumed: dcp.load({"strategy": resumed}, checkpoint_id=folder)):
            # The first buckets of this model are others than the last ones of the model before.
            other, resumed = hooked(text)
            load(resumed)
            wanted = copy.deepcopy(expected)
            for step in range(3, 6):
                got = backward(other, rank, step)
                expect(got, wanted(step, other.record, arrays(size, step))[rank], f"{text} resumed")
            assert resumed.state_dict()["step"] == 6
    # In the same model at any step, the results are the same bits.
    model, strategy = hooked("topk:0.1")
    for step in range(3):
        backward(model, rank, step)
    state = strategy.state_dict()
    expected = [backward(model, rank, step) for step in range(3, 6)]
    strategy.load_state_dict(state)
    for step, wanted in zip(range(3, 6), expected):
        expect_close(backward(model, rank, step), wanted, "topk loaded again")
    # The state outlives the process group.
    dist.barrier()
    if rank == 0:
        shutil.rmtree(box[0])
    before = dict(strategy.state_dict()[f"rank{rank}"])
    hook_state = strategy._hook.state
    dist.destroy_process_group()
    after = hook_state()
    assert all(torch.equal(before[name], after[name]) for name in after) and len(after) == len(before)
    dist.init_process_group("lockstep", store=dist.HashStore(), rank=0, world_size=1)


def state_of_two_ranks(rank, size):
    model, strategy = hooked("topk:0.1")
    for step in range(2):
        backward(model, rank, step)
    return {name: value if not isinstance(value, tuple) else [(key, values.numpy()) for key, values in value]
            for name, value in strategy.state_dict().items()}


def other_number_of_ranks(saved):
    def on_other_ranks(rank, size):
        state = {name: value for own in saved for name, value in own.items()}
        for name in ("rank0", "rank1"):
            state[name] = tuple((key, torch.from_numpy(values)) for key, values in state[name])
        model, strategy = hooked("topk:0.1")
        strategy.load_state_dict(state)
        expected = reference.top_k(0.1)
        zero = {name: numpy.zeros(shape, numpy.float32) for name, shape in SHAPES.items()}
        residuals = [{key.removesuffix(".residual"): values.numpy() for key, values in state[f"rank{r}"]} for r in (0, 1)]
        for other in range(size):
            for name in SHAPES:
                mine = [own[name] for r, own in enumerate(residuals) if r % size == other]
                expected.residuals[other, name] = sum(mine, zero[name])
        got = backward(model, rank, 2)
        expect_close(got, expected(2, model.record, arrays(size, 2))[rank], f"the state of 2 ranks on {size}")
        if size == 1:
            del state["rank1"]
            raises(ValueError, ["rank 0 of 1 got no entry rank1", "expected the entries rank0, rank1"],
                   lambda: strategy.load_state_dict(state))
    return on_other_ranks


def refused_texts(rank, size):
    for text, expected in {"local_sgd:period=4": "PostLocalSGDOptimizer", "post_local_sgd": "PostLocalSGDOptimizer",
                           "warmup:3:local_sgd": "PostLocalSGDOptimizer", "partial_update": "of=gradients",
                           "adasum": "of=gradients", "topk:2": "at most 1", "nothing": "expected one of"}.items():
        raises(ValueError, [text.split(":")[0], expected], lambda: lockstep_torch.Strategy(text))
    lockstep_torch.Strategy("adasum:of=gradients")
    raises(TypeError, ["got a model of type Weighted"], lambda: lockstep_torch.Strategy("fp32", Weighted()))
    raises(TypeError, ["save state_dict() instead"], lambda: pickle.dumps(lockstep_torch.Strategy("fp32")))


def refused_models(rank, size):
    # Two models with one Strategy, in one backward and one after the other.
    for together in (True, False):
        first, strategy = hooked("topk:0.1")
        backward(first, rank, 0)
        second = DDP(Weighted(), bucket_cap_mb=0.002)
        second.register_comm_hook(strategy, lockstep_torch.strategy_hook)
        if together:
            raises(ValueError, ["make one Strategy for each model"],
                   lambda: (first(coefficients(rank, 1)) + second(coefficients(rank, 1))).backward())
        else:
            raises(ValueError, ["make one Strategy for each model"], lambda: backward(second, rank, 1))
            backward(first, rank, 1)
    unnamed = lockstep_torch.Strategy("topk:0.1")
    for index in range(2):
        model = DDP(Weighted())
        model.register_comm_hook(unnamed, lockstep_torch.strategy_hook)
        if index == 0:
            backward(model, rank, 0)
        else:
            raises(ValueError, ["make one Strategy for each model"], lambda: backward(model, rank, 0))
    names = [name for name, _ in unnamed.state_dict()[f"rank{rank}"]]
    assert sorted(names) == [f"float32[{-i}].residual" for i in range(1, 7)], names
    # Sparse gradients.
    model = DDP(nn.Embedding(10, 4, sparse=True))
    model.register_comm_hook(lockstep_torch.Strategy("topk:0.1"), lockstep_torch.strategy_hook)
    raises(ValueError, ["layout Sparse", "sparse=False"], lambda: model(torch.tensor([1, 2])).sum().backward())
    # Float64 is no dtype of int8.
    model = DDP(nn.Linear(3, 3).double())
    model.register_comm_hook(lockstep_torch.Strategy("int8", model), lockstep_torch.strategy_hook)
    raises(ValueError, ["int8", "float64 elements of parameter weight"], lambda: model(torch.ones(2, 3).double()).sum().backward())
    # A hook of the program that changes the size of the bucket, before the first step and before the second.
    for normal_steps in (0, 1):
        model = DDP(nn.Linear(3, 3))
        strategy = lockstep_torch.Strategy("fp32", model)

        def larger(_, bucket):
            if strategy.state_dict()["step"] == normal_steps:
                bucket.set_buffer(torch.cat([bucket.buffer(), torch.ones(1)]))
            return lockstep_torch.strategy_hook(strategy, bucket)

        model.register_comm_hook(None, larger)
        for _ in range(normal_steps):
            model(torch.ones(2, 3)).sum().backward()
        raises(ValueError, ["got a bucket of 13 elements, expected the 12 elements of its parameters"],
               lambda: model(torch.ones(2, 3)).sum().backward())
    # NaN on one rank: the same error on all ranks, and the next step works.
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        model, _ = hooked("topk:0.1", **options)
        backward(model, rank, 0)
        bad = coefficients(rank, 1)
        if rank == size - 1:
            bad["c"][3, 4] = numpy.nan
        model.zero_grad()
        raises(ValueError, [f"the gradient of parameter c on rank {size - 1} has NaN or Inf"], lambda: model(bad).backward())
        got = backward(model, rank, 2)
        assert all(numpy.isfinite(values).all() for values in got.values())
    # The state of another model or strategy.
    for text, other, expected in (("topk:0.1", "fp32", "which no parameter of the model has under fp32"),
                                  ("fp32", "topk:0.1", "no residual of parameter")):
        model, strategy = hooked(text)
        backward(model, rank, 0)
        another, resumed = hooked(other)
        resumed.load_state_dict(strategy.state_dict())
        raises(ValueError, [expected], lambda: backward(another, rank, 1))
    model, strategy = hooked("topk:0.1")
    state = strategy.state_dict()
    state[f"rank{rank}"] = (("c.residual", torch.zeros(3)),)
    raises(ValueError, ["got a residual of parameter c with sizes [3], expected ["], lambda: strategy.load_state_dict(state))
    raises(TypeError, ["got a state of type NoneType, expected Strategy"], lambda: lockstep_torch.strategy_hook(None, None))
    # The process group is as before.
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size


def refused_differences(rank, size):
    last = rank == size - 1
    for text, other in (("threshold:0.5", "threshold:0.001"), ("topk:0.5", "topk:0.5,feedback=off")):
        model, _ = hooked(other if last else text)
        for _ in range(2):
            raises(ValueError, [f'got "{text}" on rank 0 and "{other}" on rank {size - 1}', "expected the same strategy on all ranks"],
                   lambda: backward(model, rank, 0))
    ones = torch.ones(2)
    dist.all_reduce(ones)
    assert ones.tolist() == [size, size]


def refused_on_one_rank(rank, size):
    """One rank alone passes the Strategy of another model, and stays: the other ranks raise its error at once."""
    _, of_another = hooked("topk:0.1")
    model = DDP(Weighted(), bucket_cap_mb=0.002)
    last = rank == size - 1
    model.register_comm_hook(of_another if last else lockstep_torch.Strategy("topk:0.1", model), lockstep_torch.strategy_hook)
    said = "got bucket 0 with a parameter" if last else f"rank {size - 1} got all_reduce with arguments that it refused (bucket 0 with"
    raises(ValueError if last else dist.DistBackendError, [said], lambda: backward(model, rank, 0))
    store = dist.distributed_c10d._get_default_store()
    store.set(f"raised{rank}", "")
    store.wait([f"raised{other}" for other in range(size)])


def another_backend(rank, size):
    model = DDP(Weighted())
    model.register_comm_hook(lockstep_torch.Strategy("topk:0.1"), lockstep_torch.strategy_hook)
    raises(ValueError, ["got a process group of backend gloo, expected lockstep"], lambda: backward(model, rank, 0))


def subgroups(rank, size):
    """The group of the model exchanges its gradients."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2])]
    group = pairs[rank // 2]
    model = DDP(Weighted(), process_group=group)
    model.register_comm_hook(lockstep_torch.Strategy("fp32", model), lockstep_torch.strategy_hook)
    got = backward(model, rank, 0)
    members = [0, 1] if rank < 2 else [2]
    expect_close(got, {name: reference.mean([arrays(size, 0)[r][name] for r in members]) for name in SHAPES}, "subgroup")


def runs_the_guide(rank, size):
    guide = pathlib.Path(__file__).parents[2] / "docs/guides/python.md"
    blocks = [text.split("```")[0] for text in guide.read_text().split("```python\n")[1:]]
    example, = [block for block in blocks if "strategy_hook" in block]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        names = {}
        exec(example, names)
        assert torch.load(f"strategy{rank}.pt")["step"] == 100
        error = (names["model"].module.weight.t() - names["target"]).square().mean()
        assert error < 0.01 * names["target"].square().mean(), error


class StrategyTest(unittest.TestCase):
    test_results = ranks.test(results, 1, 2, 3)
    test_fp32_is_plain_ddp = ranks.test(plain, 2)
    test_options_of_ddp = ranks.test(options_of_ddp, 2)
    test_accumulated_gradients = ranks.test(accumulated, 2)
    test_unused_parameters = ranks.test(unused, 2)
    test_uneven_inputs = ranks.test(joined, 2)
    test_state = ranks.test(saved_and_loaded, 2)
    test_refused_texts = ranks.test(refused_texts, 1)
    test_refused_models = ranks.test(refused_models, 2)
    test_refused_differences = ranks.test(refused_differences, 3)
    test_refusal_of_one_rank = ranks.test(refused_on_one_rank, 3)
    test_another_backend = ranks.test(another_backend, 2, backend="gloo")
    test_subgroups = ranks.test(subgroups, 3)
    test_example_of_the_guide = ranks.test(runs_the_guide, 2)

    def test_state_of_another_number_of_ranks(self):
        saved = ranks.run(state_of_two_ranks, 2)
        for size in (1, 3):
            ranks.run(other_number_of_ranks(saved), size)


if __name__ == "__main__":
    unittest.main()
