#include <span>
#include <utility>

#include "c/handles.h"

namespace {

using lockstep::Communicator;
using lockstep::Work;
using lockstep::c::communicator_of;
using lockstep::c::dtype_of;
using lockstep::c::expect_pointer;
using lockstep::c::op_of;
using lockstep::c::status_of;

void wait_for(lockstep_work& operation) {
  operation.work.wait();
  if (operation.source != nullptr) *operation.source = operation.work.source();
}

/// Issues an operation by issue(communicator, function), and waits for it or hands it to the
/// caller. After an error *work is null. source: as in lockstep_work.
template <class Issue>
lockstep_status run(const char* function, const lockstep_group* group, lockstep_work** work,
                    const Issue& issue, int32_t* source = nullptr) noexcept {
  if (work != nullptr) *work = nullptr;
  return status_of([&] {
    lockstep_work issued{.work = issue(communicator_of(function, group), function),
                         .source = source};
    if (work == nullptr) {
      wait_for(issued);
    } else {
      *work = new lockstep_work(std::move(issued));
    }
  });
}

/// The elements of each rank.
std::span<const std::size_t> counts_of(const char* function, const char* argument,
                                       const Communicator& group, const size_t* counts) {
  expect_pointer(function, argument, counts);
  return {counts, static_cast<std::size_t>(group.size())};
}

}  // namespace

lockstep_status lockstep_all_reduce(lockstep_group* group, void* data, size_t count,
                                    lockstep_dtype dtype, lockstep_op op, lockstep_work** work) {
  return run(__func__, group, work, [&](Communicator& communicator, const char* name) {
    return communicator.all_reduce(data, count, dtype_of(name, dtype), op_of(name, op));
  });
}

lockstep_status lockstep_reduce(lockstep_group* group, void* data, size_t count,
                                lockstep_dtype dtype, lockstep_op op, int32_t root,
                                lockstep_work** work) {
  return run(__func__, group, work, [&](Communicator& communicator, const char* name) {
    return communicator.reduce(data, count, dtype_of(name, dtype), op_of(name, op), root);
  });
}

lockstep_status lockstep_broadcast(lockstep_group* group, void* data, size_t count,
                                   lockstep_dtype dtype, int32_t root, lockstep_work** work) {
  return run(__func__, group, work, [&](Communicator& communicator, const char* name) {
    return communicator.broadcast(data, count, dtype_of(name, dtype), root);
  });
}

lockstep_status lockstep_all_gather(lockstep_group* group, const void* input, void* output,
                                    const size_t* counts, lockstep_dtype dtype,
                                    lockstep_work** work) {
  return run(__func__, group, work, [&](Communicator& communicator, const char* name) {
    return communicator.all_gather(input, output, counts_of(name, "counts", communicator, counts),
                                   dtype_of(name, dtype));
  });
}

lockstep_status lockstep_reduce_scatter(lockstep_group* group, const void* input, void* output,
                                        const size_t* counts, lockstep_dtype dtype, lockstep_op op,
                                        lockstep_work** work) {
  return run(__func__, group, work, [&](Communicator& communicator, const char* name) {
    return communicator.reduce_scatter(input, output,
                                       counts_of(name, "counts", communicator, counts),
                                       dtype_of(name, dtype), op_of(name, op));
  });
}

lockstep_status lockstep_gather(lockstep_group* group, const void* input, void* output,
                                size_t count, lockstep_dtype dtype, int32_t root,
                                lockstep_work** work) {
  return run(__func__, group, work, [&](Communicator& communicator, const char* name) {
    return communicator.gather(input, output, count, dtype_of(name, dtype), root);
  });
}

lockstep_status lockstep_gather_counts(lockstep_group* group, const void* input, void* output,
                                       const size_t* counts, lockstep_dtype dtype, int32_t root,
                                       lockstep_work** work) {
  return run(__func__, group, work, [&](Communicator& communicator, const char* name) {
    return communicator.gather(input, output, counts_of(name, "counts", communicator, counts),
                               dtype_of(name, dtype), root);
  });
}

lockstep_status lockstep_scatter(lockstep_group* group, const void* input, void* output,
                                 size_t count, lockstep_dtype dtype, int32_t root,
                                 lockstep_work** work) {
  return run(__func__, group, work, [&](Communicator& communicator, const char* name) {
    return communicator.scatter(input, output, count, dtype_of(name, dtype), root);
  });
}

lockstep_status lockstep_scatter_counts(lockstep_group* group, const void* input, void* output,
                                        const size_t* counts, lockstep_dtype dtype, int32_t root,
                                        lockstep_work** work) {
  return run(__func__, group, work, [&](Communicator& communicator, const char* name) {
    return communicator.scatter(input, output, counts_of(name, "counts", communicator, counts),
                                dtype_of(name, dtype), root);
  });
}

lockstep_status lockstep_all_to_all(lockstep_group* group, const void* input, void* output,
                                    size_t count, lockstep_dtype dtype, lockstep_work** work) {
  return run(__func__, group, work, [&](Communicator& communicator, const char* name) {
    return communicator.all_to_all(input, output, count, dtype_of(name, dtype));
  });
}

lockstep_status lockstep_all_to_all_counts(lockstep_group* group, const void* input, void* output,
                                           const size_t* input_counts, const size_t* output_counts,
                                           lockstep_dtype dtype, lockstep_work** work) {
  return run(__func__, group, work, [&](Communicator& communicator, const char* name) {
    return communicator.all_to_all(
        input, output, counts_of(name, "input_counts", communicator, input_counts),
        counts_of(name, "output_counts", communicator, output_counts), dtype_of(name, dtype));
  });
}

lockstep_status lockstep_send(lockstep_group* group, const void* input, size_t count,
                              lockstep_dtype dtype, int32_t to, uint32_t tag,
                              lockstep_work** work) {
  return run(__func__, group, work, [&](Communicator& communicator, const char* name) {
    return communicator.send(input, count, dtype_of(name, dtype), to, tag);
  });
}

lockstep_status lockstep_recv(lockstep_group* group, void* output, size_t count,
                              lockstep_dtype dtype, int32_t from, uint32_t tag,
                              lockstep_work** work) {
  return run(__func__, group, work, [&](Communicator& communicator, const char* name) {
    return communicator.recv(output, count, dtype_of(name, dtype), from, tag);
  });
}

lockstep_status lockstep_recv_any(lockstep_group* group, void* output, size_t count,
                                  lockstep_dtype dtype, int32_t* from, uint32_t tag,
                                  lockstep_work** work) {
  const auto issue = [&](Communicator& communicator, const char* name) {
    expect_pointer(name, "from", from);
    return communicator.recv(output, count, dtype_of(name, dtype), lockstep::any_source, tag);
  };
  return run(__func__, group, work, issue, from);
}

lockstep_status lockstep_barrier(lockstep_group* group, lockstep_work** work) {
  return run(__func__, group, work,
             [](Communicator& communicator, const char*) { return communicator.barrier(); });
}

lockstep_status lockstep_wait(lockstep_work** work) {
  if (work == nullptr || *work == nullptr) return LOCKSTEP_OK;
  const auto status = status_of([&] { wait_for(**work); });
  // While another thread uses the group, the operation goes on.
  if (status != LOCKSTEP_INVALID_ARGUMENT) delete std::exchange(*work, nullptr);
  return status;
}

lockstep_status lockstep_test(lockstep_work* work, int32_t* complete) {
  return status_of([&] {
    expect_pointer("lockstep_test", "complete", complete);
    *complete = work == nullptr || work->work.ready() ? 1 : 0;
  });
}
