#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/errors.h"
#include "backend/process_group.h"
#include "backend/tensors.h"

namespace lockstep_torch {
namespace {

/// bitwise: whether only the bits of the elements matter.
std::optional<lockstep::DType> dtype_of(at::ScalarType type, bool bitwise) {
  using lockstep::DType;
  constexpr std::pair<at::ScalarType, DType> dtypes[] = {
      {at::kFloat, DType::f32},     {at::kDouble, DType::f64}, {at::kHalf, DType::f16},
      {at::kBFloat16, DType::bf16}, {at::kChar, DType::i8},    {at::kByte, DType::u8},
      {at::kBool, DType::boolean},  {at::kShort, DType::i16},  {at::kInt, DType::i32},
      {at::kLong, DType::i64},      {at::kUInt16, DType::i16}, {at::kUInt32, DType::i32},
      {at::kUInt64, DType::i64}};
  constexpr std::size_t of_bits = 3;  // the last ones
  const auto valid = std::span(dtypes).first(std::size(dtypes) - (bitwise ? 0 : of_bits));
  const auto found = std::ranges::find(valid, c10::toRealValueType(type),
                                       &std::pair<at::ScalarType, DType>::first);
  return found == valid.end() ? std::nullopt : std::optional(found->second);
}

/// The reductions of c10d from SUM to BXOR, in its order.
constexpr std::pair<const char*, lockstep::ReduceOp> reductions[] = {
    {"SUM", lockstep::ReduceOp::sum},         {"AVG", lockstep::ReduceOp::avg},
    {"PRODUCT", lockstep::ReduceOp::product}, {"MIN", lockstep::ReduceOp::min},
    {"MAX", lockstep::ReduceOp::max},         {"BAND", lockstep::ReduceOp::band},
    {"BOR", lockstep::ReduceOp::bor},         {"BXOR", lockstep::ReduceOp::bxor}};
static_assert(c10d::ReduceOp::SUM == 0 && c10d::ReduceOp::BXOR + 1 == std::size(reductions));

lockstep::Reduction premultiplied(const c10d::ReduceOp& op, const char* operation) {
  const auto* factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  if (factor == nullptr) refuse(operation, "got PREMUL_SUM without a factor, expected a number");
  if (!factor->tensor_factor.defined()) {
    return lockstep::premultiplied_sum(factor->double_factor);
  }
  if (factor->tensor_factor.numel() != 1) {
    refuse(operation, c10::str("got a factor of PREMUL_SUM with ", factor->tensor_factor.numel(),
                               " elements, expected 1"));
  }
  return lockstep::premultiplied_sum(factor->tensor_factor.item<double>());
}

lockstep::Reduction library_reduction(const c10d::ReduceOp& op, const char* operation) {
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) return premultiplied(op, operation);
  if (op.op_ < std::size(reductions)) return reductions[op.op_].second;
  refuse(operation,
         "got an unknown ReduceOp, expected SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR or "
         "PREMUL_SUM");
}

/// Throws: std::invalid_argument naming the operation if the dtype does not have the reduction.
Reduction reduction_of(const c10d::ReduceOp& op, at::ScalarType type, const char* operation) {
  const auto reduction = library_reduction(op, operation);
  const auto refuse_pair = [&](const char* expected) {
    refuse(operation,
           c10::str("got ReduceOp.",
                    op.op_ < std::size(reductions) ? reductions[op.op_].first : "PREMUL_SUM",
                    " of ", type, ", expected ", expected));
  };
  const bool bitwise = reduction.op == lockstep::ReduceOp::band ||
                       reduction.op == lockstep::ReduceOp::bor ||
                       reduction.op == lockstep::ReduceOp::bxor;
  const auto dtype = dtype_of(type, bitwise);
  if (!dtype) {
    refuse_pair(
        "float64, float32, float16, bfloat16, complex, int64, int32, int16, int8, uint8 or bool");
  }
  if (c10::isComplexType(type) && reduction.op != lockstep::ReduceOp::sum &&
      reduction.op != lockstep::ReduceOp::avg &&
      reduction.op != lockstep::ReduceOp::premultiplied_sum) {
    refuse_pair("SUM, AVG or PREMUL_SUM for complex numbers");
  }
  if (!lockstep::has_reduction(*dtype, reduction.op)) {
    refuse_pair(bitwise                              ? "a dtype of integers or bool"
                : *dtype == lockstep::DType::boolean ? "another reduction for bool"
                                                     : "floating-point or complex numbers");
  }
  return {.dtype = *dtype, .reduction = reduction};
}

/// The tensor in contiguous memory, complex numbers as pairs of real numbers. It shares the
/// tensor's memory if that is contiguous.
at::Tensor contiguous_reals(const at::Tensor& tensor) {
  return (tensor.is_complex() ? at::view_as_real(tensor) : tensor).contiguous();
}

/// Copies what contiguous_reals() returned, or other memory of its size, to the tensor, unless it
/// is the tensor's memory.
void copy_reals(const at::Tensor& reals, const at::Tensor& tensor) {
  if (tensor.is_contiguous() && reals.data_ptr() == tensor.data_ptr()) return;
  const auto target = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  target.copy_(reals.view(target.sizes()));
}

}  // namespace

using c10d::OpType;
using lockstep::Collective;

void ProcessGroupLockstep::begin_all_reduce(const WorkPointer& work, at::Tensor input,
                                            const Reduction& reduction, Progress::Terms terms,
                                            std::function<void()> then) {
  work->keep(input);
  work->then(std::move(then));
  start(work, terms, [&](lockstep::Communicator& world) {
    return world.all_reduce(input.data_ptr(), count_of(input), reduction.dtype,
                            reduction.reduction);
  });
}

ProcessGroupLockstep::Work ProcessGroupLockstep::allreduce(
    Tensors& tensors, const c10d::AllreduceOptions& options) try {
  if (!tensors.empty() && tensors.front().layout() == at::kSparse) {
    return allreduce_sparse(tensors, options);
  }
  expect_size("all_reduce", "tensors", tensors.size(), 1);
  expect_dense("all_reduce", tensors);
  const auto& tensor = tensors.front();
  const auto reduction = reduction_of(options.reduceOp, tensor.scalar_type(), "all_reduce");
  const auto work = make_work({OpType::ALLREDUCE, "lockstep:all_reduce"}, tensors, {tensors});
  const auto reals = contiguous_reals(tensor);
  begin_all_reduce(work, reals, reduction, {options.timeout, options.asyncOp},
                   [reals, tensor] { copy_reals(reals, tensor); });
  return work;
} catch (const std::invalid_argument& refusal) {
  decline(Collective::all_reduce, refusal);
}

ProcessGroupLockstep::Work ProcessGroupLockstep::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) try {
  expect_dense("all_reduce_coalesced", tensors);
  expect_one_dtype("all_reduce_coalesced", tensors);
  const auto reduction =
      reduction_of(options.reduceOp, tensors.front().scalar_type(), "all_reduce_coalesced");
  const auto work =
      make_work({OpType::ALLREDUCE_COALESCED, "lockstep:all_reduce"}, tensors, {tensors});
  // One buffer for all: the list may contain a tensor twice.
  const auto flat = flattened(tensors);
  begin_all_reduce(work, contiguous_reals(flat), reduction, {options.timeout, options.asyncOp},
                   [flat, tensors] { unflatten(flat, tensors); });
  return work;
} catch (const std::invalid_argument& refusal) {
  decline(Collective::all_reduce, refusal);
}

ProcessGroupLockstep::Work ProcessGroupLockstep::allreduce_sparse(
    Tensors& tensors, const c10d::AllreduceOptions& options) {
  expect_alike("all_reduce", tensors);
  if (options.reduceOp.op_ != c10d::ReduceOp::SUM) {
    refuse("all_reduce", "got another ReduceOp than SUM for sparse tensors, expected SUM");
  }
  auto mine = tensors.front();
  for (std::size_t i = 1; i < tensors.size(); ++i) mine = mine + tensors[i];
  mine = mine.coalesce();
  const auto indices = mine._indices().t().contiguous();
  const auto values = mine._values().contiguous();
  // The numbers of elements first, with what is the same on all ranks.
  std::vector<std::int64_t> own{mine._nnz(), static_cast<std::int64_t>(mine.scalar_type()),
                                mine.sparse_dim()};
  own.insert(own.end(), mine.sizes().begin(), mine.sizes().end());
  const auto input = at::tensor(own, at::kLong);
  const auto all = at::empty({size_, input.numel()}, at::kLong);
  const auto counting = make_work({OpType::ALLGATHER, "lockstep:all_gather"}, {input}, {{all}});
  begin_all_gather(counting, {all}, {input}, {options.timeout, false});
  counting->wait(std::chrono::milliseconds(0));
  const auto work =
      make_work({OpType::_ALLREDUCE_SPARSE, "lockstep:sparse_all_reduce"}, tensors, {tensors});
  const auto index_bytes = static_cast<std::size_t>(mine.sparse_dim()) * sizeof(std::int64_t);
  const auto value_bytes =
      values.itemsize() * static_cast<std::size_t>(c10::multiply_integers(values.sizes().slice(1)));
  std::vector<std::size_t> index_counts;
  std::vector<std::size_t> value_counts;
  std::int64_t total = 0;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(size_); ++rank) {
    const std::span other(all.const_data_ptr<std::int64_t>() + rank * own.size(), own.size());
    if (!std::equal(own.begin() + 1, own.end(), other.begin() + 1)) {
      refuse("all_reduce",
             c10::str("got a sparse tensor of ", mine.scalar_type(), " and sizes ", mine.sizes(),
                      ", expected the dtype, sizes and sparse dimensions of rank ", rank));
    }
    index_counts.push_back(static_cast<std::size_t>(other.front()) * index_bytes);
    value_counts.push_back(static_cast<std::size_t>(other.front()) * value_bytes);
    total += other.front();
  }
  const auto all_indices = at::empty({total, mine.sparse_dim()}, at::kLong);
  auto sizes = values.sizes().vec();
  sizes.front() = total;
  const auto all_values = at::empty(sizes, values.options());
  for (const auto& tensor : {indices, values}) work->keep(tensor);
  work->then([all_indices, all_values, tensors] {
    const auto sum = at::sparse_coo_tensor(all_indices.t(), all_values, tensors.front().sizes());
    for (auto tensor : tensors) tensor.copy_(sum.coalesce());
  });
  progress_->submit(work, {options.timeout, options.asyncOp}, [&](Progress::Scope scope) {
    scope.parts.operations.push_back(scope.world.all_gather(
        indices.data_ptr(), all_indices.data_ptr(), index_counts, lockstep::DType::u8));
    scope.parts.operations.push_back(scope.world.all_gather(
        values.data_ptr(), all_values.data_ptr(), value_counts, lockstep::DType::u8));
  });
  return work;
}

ProcessGroupLockstep::Work ProcessGroupLockstep::reduce(Tensors& tensors,
                                                        const c10d::ReduceOptions& options) try {
  expect_root("reduce", options.rootRank);
  expect_size("reduce", "tensors", tensors.size(), 1);
  expect_dense("reduce", tensors);
  const auto& tensor = tensors.front();
  const auto [dtype, reduction] = reduction_of(options.reduceOp, tensor.scalar_type(), "reduce");
  const auto work = make_work({OpType::REDUCE, "lockstep:reduce"}, tensors, {tensors});
  const auto reals = contiguous_reals(tensor);
  work->keep(reals);
  if (rank_ == options.rootRank) work->then([reals, tensor] { copy_reals(reals, tensor); });
  return start(work, {options.timeout, options.asyncOp}, [&](lockstep::Communicator& world) {
    return world.reduce(reals.data_ptr(), count_of(reals), dtype, reduction,
                        static_cast<int>(options.rootRank));
  });
} catch (const std::invalid_argument& refusal) {
  decline(Collective::reduce, refusal);
}

ProcessGroupLockstep::Work ProcessGroupLockstep::begin_reduce_scatter(
    Title title, const Tensors& outputs, const Tensors& inputs,
    const std::vector<std::vector<std::size_t>>& counts, const c10d::ReduceOp& op,
    Progress::Terms terms) {
  const auto work = make_work(title, inputs, {outputs});
  struct Part {
    Reduction reduction;
    at::Tensor input;
    at::Tensor output;
    std::vector<std::size_t> counts;
    at::Tensor target;
  };
  std::vector<Part> parts;
  Tensors memory;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto& output = outputs[i];
    Part part{.reduction = reduction_of(op, inputs[i].scalar_type(), work->name()),
              .input = contiguous_reals(inputs[i]),
              .output = {},
              .counts = counts[i],
              .target = output.is_complex() ? at::view_as_real(output) : output};
    if (output.is_complex()) {
      for (auto& count : part.counts) count *= 2;
    }
    part.output = contiguous_memory(part.target);
    memory.push_back(part.output);
    parts.push_back(std::move(part));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].input = apart_from(memory, i, rank_, parts[i].input);
  }
  work->then([parts] {
    for (const auto& part : parts) copy_back(part.output, part.target);
  });
  progress_->submit(work, terms, [&](Progress::Scope scope) {
    for (const auto& part : parts) {
      scope.parts.operations.push_back(
          scope.world.reduce_scatter(part.input.data_ptr(), part.output.data_ptr(), part.counts,
                                     part.reduction.dtype, part.reduction.reduction));
    }
  });
  return work;
}

ProcessGroupLockstep::Work ProcessGroupLockstep::reduce_scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) try {
  expect_size("reduce_scatter", "output tensors", outputs.size(), 1);
  expect_size("reduce_scatter", "input lists", inputs.size(), 1);
  expect_size("reduce_scatter", "input tensors", inputs.front().size(),
              static_cast<std::size_t>(size_));
  expect_dense("reduce_scatter", inputs.front());
  expect_dense("reduce_scatter", outputs);
  expect_one_dtype("reduce_scatter", inputs.front());
  expect_elements("reduce_scatter", inputs.front()[static_cast<std::size_t>(rank_)],
                  outputs.front(), 1);
  std::vector<std::size_t> counts;
  for (const auto& tensor : inputs.front()) counts.push_back(count_of(tensor));
  return begin_reduce_scatter({OpType::REDUCE_SCATTER, "lockstep:reduce_scatter"}, outputs,
                              {apart_from(outputs.front(), flattened(inputs.front()))}, {counts},
                              options.reduceOp, {options.timeout, options.asyncOp});
} catch (const std::invalid_argument& refusal) {
  decline(Collective::reduce_scatter, refusal);
}

ProcessGroupLockstep::Work ProcessGroupLockstep::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

ProcessGroupLockstep::Work ProcessGroupLockstep::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) try {
  expect_size("reduce_scatter_tensor", "input tensors", inputs.size(), outputs.size());
  std::vector<std::vector<std::size_t>> counts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    expect_dense("reduce_scatter_tensor", Tensors{inputs[i], outputs[i]});
    expect_elements("reduce_scatter_tensor", inputs[i], outputs[i], size_);
    counts.emplace_back(static_cast<std::size_t>(size_), count_of(outputs[i]));
  }
  return begin_reduce_scatter({OpType::_REDUCE_SCATTER_BASE, "lockstep:reduce_scatter"}, outputs,
                              inputs, counts, options.reduceOp, {options.timeout, options.asyncOp});
} catch (const std::invalid_argument& refusal) {
  decline(Collective::reduce_scatter, refusal);
}

}  // namespace lockstep_torch
