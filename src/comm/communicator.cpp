#include "comm/communicator.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "comm/backend_communicator.h"
#include "core/text.h"
#include "kernels/reduce.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {
namespace {

using detail::concat;
using detail::plural;

constexpr int no_peer = -1;

/// An operation whose ranks have buffers, or parts, of these elements.
Operation operation_of(Collective collective, DType dtype, const void* input, void* output,
                       Parts parts, int peer = no_peer, ReduceOp reduce = ReduceOp::sum) {
  return {.collective = collective,
          .reduce = reduce,
          .dtype = dtype,
          .input = static_cast<const std::byte*>(input),
          .output = static_cast<std::byte*>(output),
          .count = parts.count,
          .counts = {parts.counts.begin(), parts.counts.end()},
          .peer = peer};
}

/// Whether this rank's input and output share elements. A part of this rank that is at its place in
/// both does not count.
bool overlap(const Operation& operation, int rank, Buffers elements) {
  const bool divides = operation.divides(), collects = operation.collects();
  if (!divides && !collects) return false;
  const auto bytes = [&](std::size_t count) { return count * size_of(operation.dtype); };
  const auto input = reinterpret_cast<std::uintptr_t>(operation.input);
  const auto output = reinterpret_cast<std::uintptr_t>(operation.output);
  const auto begin = std::max(input, output);
  const auto end = std::min(input + bytes(elements.input), output + bytes(elements.output));
  if (begin >= end) return false;
  const auto source = input + (divides ? bytes(operation.part_begin(rank)) : 0);
  const auto target = output + (collects ? bytes(operation.received_begin(rank)) : 0);
  return source != target || end - begin > bytes(operation.part(rank));
}

}  // namespace

Work Communicator::issue(Operation&& operation, Issue&& issue, double factor) {
  operation.issue = std::move(issue);
  if (operation.issue.source == Source{}) operation.issue.source = source_;
  if (!matches_by_tag()) operation.issue.in_order = true;
  check(operation);
  if (operation.reduce == ReduceOp::premultiplied_sum && factor != 1) {
    premultiply(operation, factor);
  }
  const int source = operation.collective == Collective::recv ? operation.peer : any_source;
  std::optional<detail::ObservedOperation> observed;
  if (observer_ != nullptr) {
    const bool is_to_all = operation.collective == Collective::all_to_all;
    const auto contributed = is_to_all ? operation.part_begin(size_) : operation.part(rank_);
    observed = {.collective = operation.collective,
                .source = operation.issue.source,
                .bytes = contributed * size_of(operation.wire_dtype())};
  }
  Work work = begin(std::move(operation));
  if (work.request_ != nullptr) {
    if (source != any_source) work.request_->set_source(source);
    work.request_->record();
    if (observed) work.request_->observe(observer_, *observed);
  } else if (observed) {
    observer_->began(*observed);
  }
  return work;
}

/// Multiplies this rank's input by the factor: in place if the operation writes its result there,
/// else in a copy.
void Communicator::premultiply(Operation& operation, double factor) {
  const bool whole = operation.collective != Collective::reduce_scatter;
  const std::size_t count = whole ? operation.count : operation.part_begin(size_);
  const bool is_result = operation.collective == Collective::all_reduce ||
                         (operation.collective == Collective::reduce && operation.peer == rank_);
  if (count == 0) return;
  if (is_result) {
    multiply(operation.input, operation.output, count, operation.dtype, factor);
    return;
  }
  auto copy = allocate(count * size_of(operation.dtype));
  multiply(operation.input, copy.get(), count, operation.dtype, factor);
  operation.input = copy.get();
  if (whole) operation.output = copy.get();
  using Owners = std::pair<std::shared_ptr<const void>, std::shared_ptr<std::byte>>;
  auto& owner = operation.issue.owner;
  owner = std::make_shared<Owners>(std::move(owner), std::move(copy));
}

void Communicator::multiply(const std::byte* input, std::byte* output, std::size_t count,
                            DType dtype, double factor) {
  kernels::multiply(dtype, factor, input, output, count);
}

void Communicator::number(Operation& operation) {
  // Messages are numbered for each pair of ranks, so that sender and receiver get the same number.
  operation.sequence =
      operation.is_message() ? ++messages_[{operation.collective, operation.peer}] : ++sequence_;
}

std::string Communicator::where(std::string_view label) const {
  return concat(label, " (", backend(), ") rank ", rank_, " of ", size_);
}

template <class... Parts>
void Communicator::refuse(const Operation& operation, const Parts&... what) const {
  throw InvalidArgument(concat(where(name(operation.collective)), ": ", what...),
                        {.operation = std::string(name(operation.collective))});
}

void Communicator::check_wire(const Operation& operation) const {
  if (!operation.wire) return;
  const auto& wire = *operation.wire;
  if (wire.dtype != DType::f16 && wire.dtype != DType::bf16) {
    refuse(operation, "got a wire of ", name(wire.dtype), ", expected float16 or bfloat16");
  }
  if (operation.reduce != ReduceOp::sum && operation.reduce != ReduceOp::avg) {
    refuse(operation, "got ", name(operation.reduce), " over a wire of ", name(wire.dtype),
           ", expected sum or avg");
  }
  if (!(wire.clip >= 0) || std::isinf(wire.clip)) {
    refuse(operation, "got a clip of ", wire.clip, ", expected 0 or more");
  }
}

void Communicator::check_counts(const Operation& operation,
                                std::span<const std::size_t> counts) const {
  if (counts.size() == static_cast<std::size_t>(size_)) return;
  refuse(operation, "got ", counts.size(), " counts, expected one for each of ",
         plural(size_, "rank"));
}

void Communicator::check(const Operation& operation) const {
  check_wire(operation);
  if (operation.is_reduction() && !has_reduction(operation.dtype, operation.reduce)) {
    refuse(operation, "got ", name(operation.reduce), " of ", name(operation.dtype), ", expected ",
           is_floating(operation.dtype)
               ? "another reduction: bitwise ones are of integers and bool"
               : "another reduction: avg is of numbers, premultiplied_sum of floats");
  }
  const bool from_any = operation.collective == Collective::recv && operation.peer == any_source;
  if (from_any && !matches_by_tag()) {
    throw BackendUnavailable(
        concat(where("recv"), ": got any_source, expected the rank that sends: the ", backend(),
               " backend matches the messages of two ranks in order; name the source, or use "
               "backend host, tcp, mpi or hierarchical"),
        {.operation = "recv"});
  }
  const bool needs_peer = operation.has_root() || (operation.is_message() && !from_any);
  if (needs_peer && (operation.peer < 0 || operation.peer >= size_)) {
    refuse(operation, "got ", operation.has_root() ? "root " : "rank ", operation.peer,
           ", expected 0 to ", size_ - 1);
  }
  if (!operation.counts.empty()) check_counts(operation, operation.input_counts());
  if (operation.has_own_counts() && operation.part(rank_) != operation.received(rank_)) {
    refuse(operation, "got a part of ", operation.received(rank_),
           " elements from this rank in the output, expected ", operation.part(rank_),
           " as in the input");
  }
  std::ptrdiff_t bytes = 0;
  const std::size_t longest =
      operation.counts.empty() ? operation.count : std::ranges::max(operation.counts);
  if (__builtin_mul_overflow(longest, size_of(operation.dtype) * static_cast<std::size_t>(size_),
                             &bytes)) {
    refuse(operation, "got ", longest, " elements, expected no more than memory can hold");
  }
  if (const auto timeout = operation.issue.timeout.count(); timeout < 0) {
    refuse(operation, "got a timeout of ", timeout, " ms, expected 0 or more");
  }
  const auto buffers = operation.buffers(rank_, size_);
  const bool has_no_input = buffers.input > 0 && operation.input == nullptr;
  if (has_no_input || (buffers.output > 0 && operation.output == nullptr)) {
    refuse(operation, "got no memory, expected ", has_no_input ? "an input" : "an output");
  }
  if (overlap(operation, rank_, buffers)) {
    refuse(operation, "got an input and an output that overlap, expected separate memory, or only ",
           "this rank's part at its place in both: pass a copy of the input");
  }
}

std::shared_ptr<Communicator> Communicator::new_group(std::span<const int> /*members*/) {
  throw BackendUnavailable(
      concat(where("new_group"),
             ": the backend has no groups that only their members create; use "
             "split() on all ranks, or backend host, tcp, mpi or hierarchical"),
      {.operation = "new_group"});
}

std::optional<std::uint64_t> Communicator::place_of(const void*) const { return {}; }

std::byte* Communicator::at_place(std::uint64_t) const {
  throw CommError(
      concat(where("at_place"), ": ranks do not share memory, expected a backend whose ranks do"));
}

Work Communicator::all_reduce(void* data, std::size_t count, DType dtype, Reduction reduction,
                              Issue options) {
  return issue(
      operation_of(Collective::all_reduce, dtype, data, data, count, no_peer, reduction.op),
      std::move(options), reduction.factor);
}

Work Communicator::all_reduce(void* data, std::size_t count, ReduceOp op, const Wire& wire,
                              Issue options) {
  auto operation = operation_of(Collective::all_reduce, DType::f32, data, data, count, no_peer, op);
  operation.wire = wire;
  return issue(std::move(operation), std::move(options));
}

Work Communicator::reduce(void* data, std::size_t count, DType dtype, Reduction reduction, int root,
                          Issue options) {
  return issue(operation_of(Collective::reduce, dtype, data, data, count, root, reduction.op),
               std::move(options), reduction.factor);
}

Work Communicator::broadcast(void* data, std::size_t count, DType dtype, int root, Issue options) {
  return issue(operation_of(Collective::broadcast, dtype, data, data, count, root),
               std::move(options));
}

Work Communicator::all_gather(const void* input, void* output, Parts parts, DType dtype,
                              Issue options) {
  return issue(operation_of(Collective::all_gather, dtype, input, output, parts),
               std::move(options));
}

Work Communicator::reduce_scatter(const void* input, void* output, Parts parts, DType dtype,
                                  Reduction reduction, Issue options) {
  return issue(
      operation_of(Collective::reduce_scatter, dtype, input, output, parts, no_peer, reduction.op),
      std::move(options), reduction.factor);
}

Work Communicator::gather(const void* input, void* output, Parts parts, DType dtype, int root,
                          Issue options) {
  return issue(operation_of(Collective::gather, dtype, input, output, parts, root),
               std::move(options));
}

Work Communicator::scatter(const void* input, void* output, Parts parts, DType dtype, int root,
                           Issue options) {
  return issue(operation_of(Collective::scatter, dtype, input, output, parts, root),
               std::move(options));
}

Work Communicator::all_to_all(const void* input, void* output, std::size_t count, DType dtype,
                              Issue options) {
  return issue(operation_of(Collective::all_to_all, dtype, input, output, count),
               std::move(options));
}

Work Communicator::all_to_all(const void* input, void* output,
                              std::span<const std::size_t> input_counts,
                              std::span<const std::size_t> output_counts, DType dtype,
                              Issue options) {
  for (const auto& each : {input_counts, output_counts}) {
    check_counts({.collective = Collective::all_to_all}, each);
  }
  std::vector<std::size_t> counts(input_counts.begin(), input_counts.end());
  counts.insert(counts.end(), output_counts.begin(), output_counts.end());
  return issue(operation_of(Collective::all_to_all, dtype, input, output, counts),
               std::move(options));
}

Work Communicator::send(const void* input, std::size_t count, DType dtype, int dst,
                        std::uint32_t tag, Issue options) {
  auto operation = operation_of(Collective::send, dtype, input, nullptr, count, dst);
  operation.tag = tag;
  return issue(std::move(operation), std::move(options));
}

Work Communicator::recv(void* output, std::size_t count, DType dtype, int src, std::uint32_t tag,
                        Issue options) {
  auto operation = operation_of(Collective::recv, dtype, nullptr, output, count, src);
  operation.tag = tag;
  return issue(std::move(operation), std::move(options));
}

Work Communicator::barrier(Issue options) {
  return issue({.collective = Collective::barrier}, std::move(options));
}

Work Communicator::reissue(const Operation& operation) {
  auto again = operation;
  again.sequence = 0;
  again.group = 0;
  auto options = std::move(again.issue);
  return issue(std::move(again), std::move(options));
}

}  // namespace lockstep
