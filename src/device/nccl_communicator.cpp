#include "device/nccl_communicator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <tuple>
#include <utility>

#include "core/text.h"
#include "device/comm_stream.h"
#include "device/device_communicator.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::device {
namespace {

/// The type of a dtype. NCCL has neither int16 nor bool: an int16 is moved as two bytes, and a bool
/// is a byte of value 0 or 1.
nccl::DataType data_type(DType dtype) {
  using enum nccl::DataType;
  constexpr std::array in_order_of_dtypes{float32, float64, float16, bfloat16, int8,
                                          uint8,   int32,   int64,   uint8,    uint8};
  static_assert(in_order_of_dtypes.size() == std::size(all_dtypes));
  return in_order_of_dtypes[static_cast<std::size_t>(dtype)];
}

/// Elements of data_type() in an element.
std::size_t elements_of(DType dtype) { return dtype == DType::i16 ? 2 : 1; }

/// The reduction of NCCL. The mean of integers is a sum that is divided afterwards. The inputs of
/// a premultiplied_sum are products already. NCCL has no bitwise ones: expect_reduction() refuses
/// them.
nccl::RedOp reduction(ReduceOp op, DType dtype) {
  if (dtype == DType::boolean && op == ReduceOp::sum) return nccl::RedOp::max;
  if (dtype == DType::boolean && op == ReduceOp::product) return nccl::RedOp::min;
  switch (op) {
    case ReduceOp::avg:
      return is_floating(dtype) ? nccl::RedOp::avg : nccl::RedOp::sum;
    case ReduceOp::min:
      return nccl::RedOp::min;
    case ReduceOp::max:
      return nccl::RedOp::max;
    case ReduceOp::product:
      return nccl::RedOp::prod;
    default:
      return nccl::RedOp::sum;
  }
}

/// Throws: InvalidArgument if NCCL does not have the operation's reduction. All ranks of the group
/// issue the same operation, so that all throw.
void expect_reduction(const Operation& operation, std::string_view where) {
  const bool is_bitwise = operation.reduce == ReduceOp::band || operation.reduce == ReduceOp::bor ||
                          operation.reduce == ReduceOp::bxor;
  if (!operation.is_reduction() || (!is_bitwise && operation.dtype != DType::i16)) return;
  throw InvalidArgument(
      detail::concat(where, ": got ", name(operation.reduce), " of ", name(operation.dtype),
                     ", expected a reduction that NCCL has, without bitwise ones and int16; use "
                     "group.host()"),
      {.operation = std::string(name(operation.collective))});
}

bool divides_integers(const Operation& operation) {
  return operation.is_reduction() && operation.reduce == ReduceOp::avg &&
         !is_floating(operation.dtype);
}

}  // namespace

/// Ranks compare the operation in the host world, without its data.
Work NcclCommunicator::announce(const Operation& operation) {
  Issue issue{.timeout = operation.issue.timeout,
              .part_of = std::make_shared<const Operation>(operation),
              .in_order = true};  // NCCL has no tags
  if (operation.collective == Collective::send) {
    return host().send(nullptr, 0, operation.dtype, operation.peer, operation.tag,
                       std::move(issue));
  }
  if (operation.collective == Collective::recv) {
    return host().recv(nullptr, 0, operation.dtype, operation.peer, operation.tag,
                       std::move(issue));
  }
  return host().barrier(std::move(issue));
}

namespace {

/// memory: used by the operation until it is complete.
detail::Task await_completion(detail::TaskRequest& request, Work announced, at::Tensor /*memory*/,
                              std::shared_ptr<const c10::Event> done) {
  request.set_source(co_await std::move(announced));
  co_await detail::until([&] { return is_complete(*done); });
}

}  // namespace

Work NcclCommunicator::begin_on_device(Operation&& operation) {
  expect_reduction(operation, where(name(operation.collective)));
  const at::NoGradGuard no_grad;
  auto done = DeviceRankContext::share(c10::Event(device().type()));
  stream().wait_for_current();
  auto begun = begin_task(std::move(operation), [&](detail::TaskRequest& request) {
    const c10::StreamGuard guard(stream().stream());
    auto announced = announce(request.operation());
    count_launch();
    // An error ends the world before it abandons the announcement.
    auto kept = context().or_cause([&] {
      auto memory = enqueue(request.operation());
      done->record(stream().stream());
      return memory;
    });
    return await_completion(request, std::move(announced), std::move(kept), done);
  });
  return Work(std::make_shared<DeviceRequest>(std::move(begun), std::move(done), stream(),
                                              DeviceRequest::Wait::nothing));
}

at::Tensor NcclCommunicator::enqueue(const Operation& operation) {
  if (operation.wire) return all_reduce_as(operation);
  if (operation.collective == Collective::reduce_scatter && !operation.counts.empty()) {
    return reduce_scatter_of_counts(operation);
  }
  const auto& [input, output] = std::tie(operation.input, operation.output);
  const std::size_t count = operation.count * elements_of(operation.dtype);
  const auto type = data_type(operation.dtype);
  const auto op = reduction(operation.reduce, operation.dtype);
  comm_.issue(operation.label(), [&](const NcclLibrary& library, auto* comm, auto* stream) {
    switch (operation.collective) {
      case Collective::all_reduce:
        return library.all_reduce(input, output, count, type, op, comm, stream);
      case Collective::reduce:
        return library.reduce(input, output, count, type, op, operation.peer, comm, stream);
      case Collective::broadcast:
        return library.broadcast(input, output, count, type, operation.peer, comm, stream);
      case Collective::reduce_scatter:
        return library.reduce_scatter(input, output, count, type, op, comm, stream);
      case Collective::all_gather:
        if (!operation.counts.empty()) break;
        return library.all_gather(input, output, count, type, comm, stream);
      default:
        break;
    }
    return move_parts(operation, library, comm, stream);
  });
  const bool has_result = operation.collective != Collective::reduce || operation.peer == rank();
  if (divides_integers(operation) && has_result) {
    on_device(output, count, operation.dtype).div_(size(), "trunc");
  }
  return {};
}

/// An all_reduce whose elements are sent in the wire dtype. NCCL adds them in that dtype, too, so
/// the mean is computed by NCCL unless the elements are divided before.
at::Tensor NcclCommunicator::all_reduce_as(const Operation& operation) {
  const auto& wire = *operation.wire;
  const auto values = on_device(operation.output, operation.count, DType::f32);
  auto sent = values;
  if (wire.clip > 0) sent = at::clamp(sent, -wire.clip, wire.clip);
  const bool divides = operation.reduce == ReduceOp::avg && wire.predivide;
  if (divides) sent = sent.mul(1.0 / size());
  sent = sent.to(scalar_type(wire.dtype));
  const auto op = divides ? nccl::RedOp::sum : reduction(operation.reduce, wire.dtype);
  comm_.issue(operation.label(), [&](const auto& library, auto* comm, auto* stream) {
    return library.all_reduce(sent.const_data_ptr(), sent.mutable_data_ptr(), operation.count,
                              data_type(wire.dtype), op, comm, stream);
  });
  values.copy_(sent);
  return sent;
}

/// NCCL has no reduce_scatter with parts of different lengths: each part is padded to the longest.
at::Tensor NcclCommunicator::reduce_scatter_of_counts(const Operation& operation) {
  const auto longest = static_cast<std::int64_t>(std::ranges::max(operation.counts));
  const auto ranks = static_cast<std::int64_t>(size());
  const auto all = on_device(operation.input, operation.part_begin(size()), operation.dtype);
  auto memory = at::empty({ranks + 1, longest}, all.options());
  const auto padded = memory.narrow(0, 0, ranks);
  padded.zero_();
  for (int rank = 0; rank < size(); ++rank) {
    const auto part = static_cast<std::int64_t>(operation.part(rank));
    padded[rank]
        .narrow(0, 0, part)
        .copy_(all.narrow(0, static_cast<std::int64_t>(operation.part_begin(rank)), part));
  }
  const auto own = memory[ranks];
  comm_.issue(operation.label(), [&](const auto& library, auto* comm, auto* stream) {
    return library.reduce_scatter(padded.const_data_ptr(), own.mutable_data_ptr(),
                                  static_cast<std::size_t>(longest), data_type(operation.dtype),
                                  reduction(operation.reduce, operation.dtype), comm, stream);
  });
  if (divides_integers(operation)) own.div_(size(), "trunc");
  const auto count = operation.part(rank());
  on_device(operation.output, count, operation.dtype)
      .copy_(own.narrow(0, 0, static_cast<std::int64_t>(count)));
  return memory;
}

/// Collectives that only move data, as messages between ranks.
nccl::Result NcclCommunicator::move_parts(const Operation& operation, const NcclLibrary& library,
                                          nccl::Comm* comm, nccl::Stream* stream) const {
  const auto type = data_type(operation.dtype);
  const auto bytes = size_of(operation.dtype);
  const int own = rank();
  auto first = nccl::Result::success;  // the first result that is not success
  const auto note = [&](nccl::Result result) {
    if (first == nccl::Result::success) first = result;
  };
  const auto elements = [&](std::size_t count) { return count * elements_of(operation.dtype); };
  const auto send = [&](const std::byte* data, std::size_t count, int to) {
    if (count > 0) note(library.send(data, elements(count), type, to, comm, stream));
  };
  const auto receive = [&](std::byte* data, std::size_t count, int from) {
    if (count > 0) note(library.recv(data, elements(count), type, from, comm, stream));
  };
  if (operation.collective == Collective::send) {
    send(operation.input, operation.count, operation.peer);
  } else if (operation.collective == Collective::recv) {
    receive(operation.output, operation.count, operation.peer);
  } else {
    const detail::Shape shape(operation, size(), own);
    for (int rank = 0; rank < size(); ++rank) {
      if (shape.sends(own, rank)) {
        send(operation.input + shape.begin(rank) * bytes, shape.length(own, rank), rank);
      }
      if (shape.sends(rank, own)) {
        receive(operation.output + shape.place(rank) * bytes, shape.length(rank, own), rank);
      }
    }
  }
  return first;
}

}  // namespace lockstep::device
