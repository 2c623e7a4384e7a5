#include "lockstep/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/TensorOptions.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "comm/communicator.h"
#include "core/failure.h"
#include "core/operation_error.h"
#include "core/text.h"
#include "device/device_communicator.h"
#include "group/tensors.h"
#include "lockstep/error.h"
#include "profile/group_statistics.h"

namespace lockstep::inline v0_2 {

using detail::concat;
using detail::mark_written;
using detail::refuse_tensor;
using detail::throw_invalid;

namespace {

/// The memory of a dense, contiguous tensor on the group's device.
struct CheckedTensor {
  void* data;
  std::size_t count;
  DType dtype;
};

CheckedTensor check(const Group& group, const at::Tensor& tensor, std::string_view where) {
  if (!tensor.defined()) refuse_tensor(where, "got an undefined tensor, expected a defined one");
  if (tensor.layout() != at::kStrided || tensor.device() != group.device()) {
    const bool host = tensor.is_cpu() && !group.device().is_cpu();
    refuse_tensor(where, "got a tensor of layout ", tensor.layout(), " on ", tensor.device(),
                  ", expected a dense one on ", group.device(),
                  host ? ": move it with .to(group.device()), or use group.host()" : "");
  }
  if (!tensor.is_contiguous()) {
    refuse_tensor(where, "got a tensor of sizes ", tensor.sizes(), " and strides ",
                  tensor.strides(), ", expected a contiguous one: call .contiguous()");
  }
  if (!detail::has_values_in_memory(tensor)) refuse_tensor(where, detail::without_values(tensor));
  const DType dtype = detail::dtype_of(tensor.scalar_type(), where);
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), dtype};
}

Issue issue_of(const at::Tensor& tensor, const at::Tensor& other = {}, bool compare_shape = true) {
  Issue issue;
  if (compare_shape) issue.shape = tensor.sizes().vec();
  issue.owner = std::make_shared<std::pair<at::Tensor, at::Tensor>>(tensor, other);
  return issue;
}

void expect_same_dtype(const CheckedTensor& input, const CheckedTensor& output,
                       std::string_view where) {
  if (input.dtype == output.dtype) return;
  refuse_tensor(where, "got an output of ", name(output.dtype), ", expected ", name(input.dtype),
                " as the input");
}

void expect_count(std::size_t got, std::size_t expected, std::string_view what,
                  std::string_view where) {
  if (got == expected) return;
  refuse_tensor(where, "got an ", what, " of ", got, " elements, expected ", expected);
}

std::size_t total(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

/// The elements that each rank contributes or gets; null if all ranks have as many.
using Counts = const std::vector<std::size_t>*;

/// The tensor of a collective that has all ranks' parts. The other one has this rank's part.
enum class Whole : bool { input, output };

/// Checks dtypes and the numbers of elements: counts has one for each rank.
void expect_divided(const CheckedTensor& from, const CheckedTensor& to, Whole whole, Counts counts,
                    const Group& group, std::string_view where) {
  expect_same_dtype(from, to, where);
  const bool to_whole = whole == Whole::output;
  const auto part = to_whole ? from.count : to.count;
  const auto size = static_cast<std::size_t>(group.size());
  if (counts != nullptr) {
    expect_count(counts->size(), size, "array of counts", where);
    expect_count(part, (*counts)[static_cast<std::size_t>(group.rank())],
                 to_whole ? "input" : "output", where);
  }
  expect_count(to_whole ? to.count : from.count, counts != nullptr ? total(*counts) : part * size,
               to_whole ? "output" : "input", where);
}

Parts parts_of(Counts counts, std::size_t of_each) {
  return counts != nullptr ? Parts(*counts) : Parts(of_each);
}

/// A rank other than root passes it in place of a tensor with all parts.
CheckedTensor absent(const Group& group, Counts counts, const CheckedTensor& part) {
  const auto size = static_cast<std::size_t>(group.size());
  return {nullptr, counts != nullptr ? total(*counts) : part.count * size, part.dtype};
}

Work all_gather(const Group& group, const at::Tensor& output, const at::Tensor& input,
                Counts counts) {
  const auto from = check(group, input, "all_gather input");
  const auto to = check(group, output, "all_gather output");
  expect_divided(from, to, Whole::output, counts, group, "all_gather");
  mark_written(group, output, input, "all_gather");
  return group.communicator().all_gather(from.data, to.data, parts_of(counts, from.count),
                                         from.dtype, issue_of(input, output, counts == nullptr));
}

Work reduce_scatter(const Group& group, const at::Tensor& output, const at::Tensor& input,
                    Counts counts, Reduction reduction) {
  const auto from = check(group, input, "reduce_scatter input");
  const auto to = check(group, output, "reduce_scatter output");
  expect_divided(from, to, Whole::input, counts, group, "reduce_scatter");
  mark_written(group, output, input, "reduce_scatter");
  return group.communicator().reduce_scatter(from.data, to.data, parts_of(counts, to.count),
                                             from.dtype, reduction,
                                             issue_of(output, input, counts == nullptr));
}

Work gather(const Group& group, const at::Tensor& output, const at::Tensor& input, Counts counts,
            int root) {
  const bool is_root = group.rank() == root;
  const auto from = check(group, input, "gather input");
  const auto to = is_root ? check(group, output, "gather output") : absent(group, counts, from);
  expect_divided(from, to, Whole::output, counts, group, "gather");
  if (is_root) mark_written(group, output, input, "gather");
  return group.communicator().gather(from.data, to.data, parts_of(counts, from.count), from.dtype,
                                     root, issue_of(input, output, counts == nullptr));
}

Work scatter(const Group& group, const at::Tensor& output, const at::Tensor& input, Counts counts,
             int root) {
  const bool is_root = group.rank() == root;
  const auto to = check(group, output, "scatter output");
  const auto from = is_root ? check(group, input, "scatter input") : absent(group, counts, to);
  expect_divided(from, to, Whole::input, counts, group, "scatter");
  mark_written(group, output, is_root ? input : output, "scatter");
  return group.communicator().scatter(from.data, to.data, parts_of(counts, to.count), to.dtype,
                                      root, issue_of(output, input, counts == nullptr));
}

}  // namespace

Group::Group(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {
  if (communicator_ == nullptr) throw_invalid("Group", "got no communicator");
  detail::GroupStatistics::of(*communicator_);  // begins to count the group's operations
  const auto* on_device = dynamic_cast<const device::DeviceCommunicator*>(communicator_.get());
  if (on_device != nullptr) device_ = on_device->device();
}

Group Group::host() const {
  const auto* on_device = dynamic_cast<const device::DeviceCommunicator*>(communicator_.get());
  return on_device != nullptr ? Group(on_device->host_memory()) : *this;
}

int Group::rank() const { return communicator_->rank(); }

int Group::size() const { return communicator_->size(); }

Statistics Group::statistics() const { return detail::GroupStatistics::of(*communicator_).rows(); }

int Group::node() const { return communicator_->hosts()[static_cast<std::size_t>(rank())]; }

int Group::nodes() const { return std::ranges::max(communicator_->hosts()) + 1; }

int Group::local_rank() const {
  const auto& hosts = communicator_->hosts();
  return static_cast<int>(std::count(hosts.begin(), hosts.begin() + rank(), node()));
}

int Group::local_size() const {
  return static_cast<int>(std::ranges::count(communicator_->hosts(), node()));
}

Work Group::all_reduce(const at::Tensor& tensor, Reduction reduction) const {
  const auto [data, count, dtype] = check(*this, tensor, "all_reduce");
  mark_written(*this, tensor, tensor, "all_reduce");
  return communicator_->all_reduce(data, count, dtype, reduction, issue_of(tensor));
}

Work Group::all_reduce(const at::Tensor& tensor, ReduceOp op, const Wire& wire) const {
  const auto [data, count, dtype] = check(*this, tensor, "all_reduce");
  if (dtype != DType::f32) {
    refuse_tensor(concat("all_reduce as ", name(wire.dtype)), "got a tensor of ", name(dtype),
                  ", expected float32");
  }
  mark_written(*this, tensor, tensor, "all_reduce");
  return communicator_->all_reduce(data, count, op, wire, issue_of(tensor));
}

Work Group::reduce(const at::Tensor& tensor, int root, Reduction reduction) const {
  const auto [data, count, dtype] = check(*this, tensor, "reduce");
  if (rank() == root) mark_written(*this, tensor, tensor, "reduce");
  return communicator_->reduce(data, count, dtype, reduction, root, issue_of(tensor));
}

Work Group::broadcast(const at::Tensor& tensor, int root) const {
  const auto [data, count, dtype] = check(*this, tensor, "broadcast");
  mark_written(*this, tensor, tensor, "broadcast");
  return communicator_->broadcast(data, count, dtype, root, issue_of(tensor));
}

Work Group::all_gather(const at::Tensor& output, const at::Tensor& input) const {
  return lockstep::all_gather(*this, output, input, nullptr);
}

Work Group::all_gather(const at::Tensor& output, const at::Tensor& input,
                       const std::vector<std::size_t>& counts) const {
  return lockstep::all_gather(*this, output, input, &counts);
}

Work Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                           Reduction reduction) const {
  return lockstep::reduce_scatter(*this, output, input, nullptr, reduction);
}

Work Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                           const std::vector<std::size_t>& counts, Reduction reduction) const {
  return lockstep::reduce_scatter(*this, output, input, &counts, reduction);
}

Work Group::gather(const at::Tensor& output, const at::Tensor& input, int root) const {
  return lockstep::gather(*this, output, input, nullptr, root);
}

Work Group::gather(const at::Tensor& output, const at::Tensor& input,
                   const std::vector<std::size_t>& counts, int root) const {
  return lockstep::gather(*this, output, input, &counts, root);
}

Work Group::scatter(const at::Tensor& output, const at::Tensor& input, int root) const {
  return lockstep::scatter(*this, output, input, nullptr, root);
}

Work Group::scatter(const at::Tensor& output, const at::Tensor& input,
                    const std::vector<std::size_t>& counts, int root) const {
  return lockstep::scatter(*this, output, input, &counts, root);
}

Work Group::all_to_all(const at::Tensor& output, const at::Tensor& input) const {
  const auto from = check(*this, input, "all_to_all input");
  const auto to = check(*this, output, "all_to_all output");
  expect_same_dtype(from, to, "all_to_all");
  expect_count(to.count, from.count, "output", "all_to_all");
  const std::size_t part = from.count / static_cast<std::size_t>(size());
  expect_count(from.count, part * static_cast<std::size_t>(size()),
               "input that does not divide among the ranks", "all_to_all");
  mark_written(*this, output, input, "all_to_all");
  return communicator_->all_to_all(from.data, to.data, part, from.dtype, issue_of(input, output));
}

Work Group::all_to_all(const at::Tensor& output, const at::Tensor& input,
                       const std::vector<std::size_t>& output_counts,
                       const std::vector<std::size_t>& input_counts) const {
  const auto from = check(*this, input, "all_to_all input");
  const auto to = check(*this, output, "all_to_all output");
  expect_same_dtype(from, to, "all_to_all");
  expect_count(from.count, total(input_counts), "input", "all_to_all");
  expect_count(to.count, total(output_counts), "output", "all_to_all");
  mark_written(*this, output, input, "all_to_all");
  return communicator_->all_to_all(from.data, to.data, input_counts, output_counts, from.dtype,
                                   issue_of(input, output, false));
}

Work Group::send(const at::Tensor& tensor, int dst, std::uint32_t tag) const {
  const auto [data, count, dtype] = check(*this, tensor, "send");
  return communicator_->send(data, count, dtype, dst, tag, issue_of(tensor));
}

Work Group::recv(const at::Tensor& tensor, int src, std::uint32_t tag) const {
  const auto [data, count, dtype] = check(*this, tensor, "recv");
  mark_written(*this, tensor, tensor, "recv");
  return communicator_->recv(data, count, dtype, src, tag, issue_of(tensor));
}

Work Group::barrier() const { return communicator_->barrier(); }

at::Tensor Group::empty(at::IntArrayRef sizes, at::ScalarType dtype) const {
  std::size_t bytes = c10::elementSize(dtype);
  for (const auto size : sizes) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes))
      throw_invalid("empty", "got sizes ", sizes,
                    ", expected sizes of 0 or more that fit in memory");
  }
  if (!device_.is_cpu()) return at::empty(sizes, at::TensorOptions().dtype(dtype).device(device_));
  auto memory = communicator_->allocate(bytes);
  void* data = memory.get();
  return at::from_blob(
      data, sizes, [memory = std::move(memory)](void*) mutable { memory.reset(); },
      at::TensorOptions().dtype(dtype));
}

void Group::in_turn(const std::function<void()>& fn) const {
  for (int turn = 0; turn < size(); ++turn) {
    if (turn == rank()) {
      try {
        fn();
      } catch (...) {
        communicator_->fail(concat("in_turn: ", detail::current_error_text()));
        throw;
      }
    }
    barrier().wait();
  }
}

Group Group::split(int color, int key) const {
  // Checks the color after the collective, so that ranks with valid colors do not wait for this
  // one.
  auto part = communicator_->split(color, key);
  if (part == nullptr) {
    throw_invalid("split", "got color ", color, " on rank ", rank(), ", expected 0 or more");
  }
  part->number_owners_with(*communicator_);
  return Group(std::move(part));
}

Group Group::new_group(const std::vector<int>& members) const {
  for (const int member : members) {
    if (member < 0 || member >= size()) {
      throw_invalid("new_group", "got member ", member, ", expected 0 to ", size() - 1);
    }
    if (std::ranges::count(members, member) > 1) {
      throw_invalid("new_group", "got member ", member, " twice, expected each rank once");
    }
  }
  if (std::ranges::find(members, rank()) == members.end()) {
    throw_invalid("new_group", "got a list without rank ", rank(),
                  ", expected the calling rank among the members: only members call new_group()");
  }
  auto part = communicator_->new_group(members);
  part->number_owners_with(*communicator_);
  return Group(std::move(part));
}

}  // namespace lockstep
