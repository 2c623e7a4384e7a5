"""Every operation of torch.distributed: results as computed from the inputs of all ranks."""

import concurrent.futures
import datetime
import functools
import os
import resource
import time
import unittest

import torch
import torch.distributed as dist

import lockstep_torch  # noqa: F401: registers the backend
import ranks

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
          torch.int64, torch.bool, torch.complex64, torch.complex128]
Op = dist.ReduceOp
COMBINE = {Op.PRODUCT: torch.mul, Op.MIN: torch.minimum, Op.MAX: torch.maximum, Op.BAND: torch.bitwise_and, Op.BOR: torch.bitwise_or,
           Op.BXOR: torch.bitwise_xor}


def input_of(rank, dtype, shape=(2, 3)):
    """Small integers, so that sums are exact in every dtype."""
    values = torch.arange(torch.Size(shape).numel()).reshape(shape) % 3 + rank
    return values % 2 == 1 if dtype == torch.bool else values.to(dtype)


def expect(got, expected, what):
    if got.dtype != expected.dtype or not torch.equal(got, expected):
        raise AssertionError(f"{what}: got {got}, expected {expected}")


def reduced(size, dtype, op):
    result = functools.reduce(COMBINE.get(op, torch.add), [input_of(rank, dtype) for rank in range(size)])
    if op == Op.AVG:
        result = result / size if dtype.is_floating_point or dtype.is_complex else result.div(size, rounding_mode="trunc")
    return result.to(dtype)


def reductions(rank, size):
    for dtype in DTYPES:
        for op in (Op.SUM, Op.AVG, Op.PRODUCT, Op.MIN, Op.MAX, Op.BAND, Op.BOR, Op.BXOR):
            if dtype.is_complex and op not in (Op.SUM, Op.AVG):
                continue
            if dtype == torch.bool and op == Op.AVG:
                continue
            if op in (Op.BAND, Op.BOR, Op.BXOR) and (dtype.is_floating_point or dtype.is_complex):
                continue
            what = f"{op} of {dtype}"
            expected = reduced(size, dtype, op)
            tensor = input_of(rank, dtype)
            dist.all_reduce(tensor, op)
            expect(tensor, expected, f"all_reduce {what}")
            tensor = input_of(rank, dtype).t().contiguous().t()
            dist.all_reduce(tensor, op)
            expect(tensor, expected, f"all_reduce {what}, not contiguous")
            tensor = input_of(rank, dtype)
            dist.reduce(tensor, size - 1, op)
            expect(tensor, expected if rank == size - 1 else input_of(rank, dtype), f"reduce {what}")
            output = torch.empty((2, 3), dtype=dtype)
            dist.reduce_scatter_tensor(output, torch.cat([input_of(rank, dtype)] * size), op)
            expect(output, expected, f"reduce_scatter_tensor {what}")
    for factor in (dist._make_nccl_premul_sum(0.5), dist._make_nccl_premul_sum(torch.tensor([0.5]))):
        for dtype in (torch.float32, torch.complex64):
            tensor = input_of(rank, dtype)
            dist.all_reduce(tensor, factor)
            expect(tensor, reduced(size, dtype, Op.SUM) / 2, f"all_reduce PREMUL_SUM of {dtype}")
    tensor = torch.tensor([1 << rank, 65535]).to(torch.uint16)
    dist.all_reduce(tensor, Op.BXOR)
    expect(tensor, torch.tensor([(1 << size) - 1, 65535 * (size % 2)]).to(torch.uint16), "all_reduce BXOR of uint16")
    twice = input_of(rank, torch.float32)
    other = input_of(rank, torch.float32, (5,))
    dist.all_reduce_coalesced([twice, other, twice])
    expect(twice, reduced(size, torch.float32, Op.SUM), "all_reduce_coalesced")
    # Parts of different sizes.
    inputs = [torch.full((part + 1,), float(rank)) for part in range(size)]
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, inputs)
    expect(output, torch.full((rank + 1,), float(sum(range(size)))), "reduce_scatter")
    sparse = torch.sparse_coo_tensor([[rank, rank + 1]], torch.ones(2, 4), (size + 1, 4))
    dist.all_reduce(sparse)
    expected = torch.full((size + 1, 4), 2.0)
    expected[0] = expected[size] = 1
    expect(sparse.to_dense(), expected, "all_reduce of sparse tensors")
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    expect(scalar, torch.tensor(float(sum(range(size)))), "all_reduce of a scalar")
    dist.all_reduce(torch.empty(0))


def copies(rank, size):
    for dtype in DTYPES + [torch.float8_e4m3fn]:
        mine = input_of(rank, dtype) if dtype != torch.float8_e4m3fn else torch.arange(6).reshape(2, 3).float().to(dtype)
        all_inputs = [input_of(r, dtype) if dtype != torch.float8_e4m3fn else mine for r in range(size)]

        def same(got, expected, what):
            for one, other in zip(got, expected, strict=True):
                expect(one.view(torch.uint8), other.view(torch.uint8), f"{what} of {dtype}")

        for root in range(size):
            tensor = mine.clone()
            dist.broadcast(tensor, root)
            same([tensor], [all_inputs[root]], "broadcast")
            outputs = [torch.empty_like(mine) for _ in range(size)] if rank == root else None
            dist.gather(mine, outputs, root)
            same(outputs or all_inputs, all_inputs, "gather")
            output = torch.empty_like(mine)
            dist.scatter(output, [t.clone() for t in all_inputs] if rank == root else None, root)
            same([output], [mine], "scatter")
        outputs = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(outputs, mine)
        same(outputs, all_inputs, "all_gather")
        flat = torch.empty((2 * size, 3), dtype=dtype)
        dist.all_gather_into_tensor(flat, mine)
        same(flat.split(2), all_inputs, "all_gather_into_tensor")
        outputs = [torch.empty_like(mine) for _ in range(size)]
        dist.all_to_all(outputs, [mine] * size)
        same(outputs, all_inputs, "all_to_all")
    # Parts of one tensor, whose memory is used in place, also where the input is such a part.
    whole = torch.arange(float(3 * size)).reshape(size, 3)
    dist.all_gather(list(whole), torch.full((3,), float(rank)))
    expect(whole, torch.arange(float(size)).reshape(size, 1).expand(size, 3), "all_gather into parts")
    dist.all_gather(list(whole), whole[(rank + 1) % size])
    expect(whole[:, 0], (torch.arange(float(size)) + 1) % size, "all_gather of parts")
    outputs = [torch.empty(3) for _ in range(size)]
    dist.all_gather(outputs, (torch.arange(6.0) + rank)[::2])
    expect(torch.stack(outputs), torch.arange(0.0, 6, 2) + torch.arange(float(size)).reshape(size, 1), "all_gather of every second element")
    # The input is this rank's part of the output, another part, or in another output.
    for place in (rank, (rank + 1) % size):
        whole[place] = rank
        dist.all_gather_into_tensor(whole, whole[place])
        expect(whole[:, 0], torch.arange(float(size)), "all_gather_into_tensor of a part")
    other = torch.empty(size, 3)
    whole[rank] = whole[rank] + 1
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(whole, torch.full((3,), float(rank)))
        dist.all_gather_into_tensor(other, whole[rank])
    expect(other[:, 0], torch.arange(1.0, size + 1), "all_gather_into_tensor of a part of another output")
    whole = torch.full((size, 3), float(rank))
    dist.scatter(whole[0], list(whole + torch.arange(float(size)).reshape(size, 1)) if rank == size - 1 else None, size - 1)
    expect(whole[0], torch.full((3,), size - 1.0 + rank), "scatter into a part")
    whole = torch.arange(float(2 * size)).reshape(size, 2) + rank
    dist.all_to_all(list(whole), list(whole))
    expect(whole, (torch.arange(2.0) + 2 * rank).repeat(size, 1) + torch.arange(float(size)).reshape(size, 1), "all_to_all in place")
    whole = torch.ones(size, 2)
    dist.reduce_scatter(whole[0], list(whole))
    expect(whole[0], torch.full((2,), float(size)), "reduce_scatter into a part")
    whole, output = torch.ones(size, 2), torch.empty(2)
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(whole[0], whole)
        dist.reduce_scatter_tensor(output, whole)
    expect(torch.stack([whole[0], output]), torch.full((2, 2), float(size)), "reduce_scatter_tensor into and of another output")
    # Different sizes: rank r sends part + r + 1 elements to rank `part`.
    output = torch.empty(sum(rank + r + 1 for r in range(size)))
    splits = [part + rank + 1 for part in range(size)]
    dist.all_to_all_single(output, torch.full((sum(splits),), float(rank)), [rank + r + 1 for r in range(size)], splits)
    expect(output, torch.cat([torch.full((rank + r + 1,), float(r)) for r in range(size)]), "all_to_all_single")
    output = torch.empty(size)
    dist.all_to_all_single(output, torch.arange(float(size)))
    expect(output, torch.full((size,), float(rank)), "all_to_all_single of equal parts")
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * 1000 * rank})
    assert [o["rank"] for o in objects] == list(range(size))
    box = [rank, "rank 0" if rank == 0 else None]
    dist.broadcast_object_list(box, 0)
    assert box == [0, "rank 0"]
    outputs = [[torch.empty(2), torch.empty(1)] for _ in range(size)]
    dist.distributed_c10d.all_gather_coalesced(outputs, [torch.full((2,), float(rank)), torch.ones(1)])
    assert [float(pair[0][1]) for pair in outputs] == list(range(size))


def messages(rank, size):
    # By tag, in another order than they were sent.
    if rank == 0:
        works = [dist.isend(torch.full((tag + 1,), float(tag)), 1, tag=tag) for tag in range(5)]
        for work in works:
            work.wait()
    elif rank == 1:
        for tag in (3, 0, 4, 2, 1):
            tensor = torch.empty(tag + 1)
            dist.recv(tensor, 0, tag=tag)
            expect(tensor, torch.full((tag + 1,), float(tag)), f"recv of tag {tag}")
    # From any source.
    if rank == 0:
        sources = set()
        for _ in range(size - 1):
            tensor = torch.empty(1)
            source = dist.recv(tensor, tag=9)
            assert source == int(tensor), (source, tensor)
            sources.add(source)
        assert sources == set(range(1, size))
    else:
        dist.send(torch.full((1,), float(rank)), 0, tag=9)
    right, left = (rank + 1) % size, (rank - 1) % size
    tensor = torch.empty(70_000)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((70_000,), float(rank)), right),
                                        dist.P2POp(dist.irecv, tensor, left)]):
        work.wait()
    expect(tensor, torch.full((70_000,), float(left)), "batch_isend_irecv")
    dist.barrier()
    dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=30))
    dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=30), wait_all_ranks=True)


def asynchronous(rank, size):
    total = float(sum(range(size)))
    tensors = [torch.full((1000,), float(rank)) for _ in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
        assert work.is_completed()
    for tensor in tensors:
        expect(tensor, torch.full((1000,), total), "asynchronous all_reduce")
    # A callback that waits for another operation, as PowerSGD's hook does.
    future = dist.all_reduce(torch.full((3,), float(rank)), async_op=True).get_future()

    def again(done):
        return dist.all_reduce(done.value()[0].clone(), async_op=True).get_future().wait()[0]

    expect(future.then(again).wait(), torch.full((3,), total * size), "all_reduce in a callback")
    # A progress thread completes it, and copies into tensors of the inference mode of this thread.
    with torch.inference_mode():
        outputs = [torch.empty(3) for _ in range(size)]
        dist.all_gather(outputs, torch.full((3,), float(rank)), async_op=True).get_future().wait()
        expect(torch.stack(outputs), torch.arange(float(size)).reshape(size, 1).expand(size, 3), "all_gather in inference mode")
    # A group for each thread, and all threads wait in one group.
    groups = [dist.new_group() for _ in range(3)]

    def use(group):
        for _ in range(50):
            tensor = torch.full((100,), float(rank))
            dist.all_reduce(tensor, group=group)
            expect(tensor, torch.full((100,), total), "all_reduce in a thread")

    with concurrent.futures.ThreadPoolExecutor(20) as threads:
        list(threads.map(use, groups))
        works = [dist.all_reduce(torch.ones(100), async_op=True) for _ in range(20)]
        list(threads.map(lambda work: (work.wait(), work.get_future().value()), works))
    tensor = torch.full((100_000,), 1e-40)
    torch.set_flush_denormal(True)
    time.sleep(0.2 * (rank == 0))
    dist.all_reduce(tensor, async_op=True).get_future().wait()
    torch.set_flush_denormal(False)
    assert not tensor.view(torch.int32).any(), "all_reduce by a progress thread that is older than the setting"


def groups(rank, size):
    """Groups that only their members make, and a group's end."""
    store = dist.distributed_c10d._get_default_store()

    class Slow(dist.Store):
        """Rank 0 removes keys late."""
        get = staticmethod(lambda key: store.get(key))
        set = staticmethod(lambda key, value: store.set(key, value))
        deleteKey = staticmethod(lambda key: time.sleep(0.3 * (rank == 0)) or store.delete_key(key))

    for slow in [Slow()] * 2:
        ranks.create_group(slow, rank, size).shutdown()
    for _ in range(3):
        evens = list(range(0, size, 2))
        group = dist.new_group(evens)
        if rank in evens:
            tensor = torch.full((2,), float(rank))
            dist.all_reduce(tensor, group=group)
            expect(tensor, torch.full((2,), float(sum(evens))), "all_reduce in a group")
            dist.destroy_process_group(group)
        mine = [rank // 2 * 2, rank // 2 * 2 + 1]
        if mine[1] < size:
            pair = dist.new_group(mine, use_local_synchronization=True)
            tensor = torch.full((2,), float(rank))
            dist.all_reduce(tensor, group=pair)
            expect(tensor, torch.full((2,), float(sum(mine))), "all_reduce in a group of members")
    mesh = dist.device_mesh.init_device_mesh("cpu", (1, size), mesh_dim_names=("a", "b"))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=mesh.get_group("b"))
    expect(tensor, torch.full((1,), float(size)), "all_reduce in a mesh")


def address_space():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def many_groups(rank, size):
    """They need address space only for memory that is allocated in them."""
    before = address_space()
    store = dist.distributed_c10d._get_default_store()
    groups = [ranks.create_group(store, rank, size, f"group {number}", range(size)) for number in range(200)]
    for group in groups:
        tensor = torch.full((1000,), float(rank))
        group.allreduce([tensor]).wait()
        expect(tensor, torch.full((1000,), float(sum(range(size)))), "all_reduce in one of many groups")
    assert address_space() - before < 64 << 30, address_space() - before


def memory(rank, size):
    """A DDP bucket in the memory of the group, which may live longer than the group."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    tensor = backend.allocate_tensor(1000, dtype=torch.float32, device=torch.device("cpu"))
    tensor.fill_(rank)
    dist.all_reduce(tensor)
    expect(tensor, torch.full((1000,), float(sum(range(size)))), "all_reduce in group memory")
    dist.destroy_process_group()
    tensor.add_(1)
    del tensor
    dist.init_process_group("lockstep", store=dist.HashStore(), rank=0, world_size=1)


def buckets(rank, size):
    """Whether DDP's buckets, of which these gradients are views, lie in the memory that ranks share."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4), gradient_as_bucket_view=True)
    model(torch.full((2, 8), float(rank))).sum().backward()
    expect(model.module.weight.grad, torch.full((4, 8), float(size - 1)), "mean gradient")
    with open("/proc/self/maps") as file:
        for line in file:
            begin, end = (int(bound, 16) for bound in line.split()[0].split("-"))
            if begin <= model.module.weight.grad.data_ptr() < end:
                return "lockstep-world" in line


def limit_address_space(rank):
    """As ulimit -v, too little for the machine's memory for each rank."""
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + (3 << 30), resource.RLIM_INFINITY))


class CollectivesTest(unittest.TestCase):
    test_reductions = ranks.test(reductions, 1, 2, 3)
    test_copies = ranks.test(copies, 1, 2, 3)
    test_messages = ranks.test(messages, 2, 3)
    test_asynchronous = ranks.test(asynchronous, 2, 3)
    test_groups = ranks.test(groups, 2, 4)
    test_many_groups = ranks.test(many_groups, 2)
    test_memory = ranks.test(memory, 2)
    test_buckets_in_limited_address_space = ranks.test(buckets, 2, 4, before=limit_address_space)
    test_memory_in_limited_address_space = ranks.test(memory, 2, 4, before=limit_address_space)

    def test_buckets(self):
        shared = [ranks.run(buckets, 2, before=lambda _: setattr(torch.cuda, "device_count", lambda: gpus)) for gpus in (0, 1)]
        self.assertEqual(shared, [[True, True], [False, False]])


if __name__ == "__main__":
    unittest.main()
