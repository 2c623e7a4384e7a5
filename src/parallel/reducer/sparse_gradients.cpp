#include "parallel/reducer/sparse_gradients.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "comm/communicator.h"
#include "core/numeric/digest.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "parallel/agree.h"
#include "parallel/reducer/consistency_check.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// A rank sends it in place of its number of rows.
constexpr std::int64_t is_not_sparse = -1;

bool has_rows(const at::Tensor& gradient, const at::Tensor& parameter) {
  return gradient.layout() == at::kSparse && gradient.sparse_dim() == 1 &&
         gradient.sizes() == parameter.sizes() &&
         gradient.scalar_type() == parameter.scalar_type() && gradient.is_cpu();
}

}  // namespace

SparseGradients::SparseGradients(std::vector<NamedTensor> parameters, const Group& group,
                                 const Source& owner, std::size_t first_bucket)
    : group_(group), owner_(owner), first_bucket_(first_bucket) {
  owner_.content = Source::Content::gradients;
  for (auto& [name, tensor] : parameters)
    members_.push_back({.slice = {.name = std::move(name), .parameter = tensor, .offset = 0}});
  if (members_.empty()) return;
  const auto count = static_cast<std::int64_t>(size());
  own_rows_ = group_.empty({count}, at::kLong);
  all_rows_ = group_.empty({group_.size() * count}, at::kLong);
}

const at::Tensor& SparseGradients::contribute(std::size_t index, const at::Tensor& gradient,
                                              double factor) {
  auto& member = members_[index];
  auto& rows = own_rows_.data_ptr<std::int64_t>()[index];
  rows = 0;
  member.indices.reset();
  member.values.reset();
  if (!gradient.defined()) return member.values;
  if (!has_rows(gradient, member.slice.parameter)) {
    rows = is_not_sparse;
    return member.values;
  }
  if (factor == 0) return member.values;  // a factor of 0 must also remove NaN
  const auto sum = gradient.detach().coalesce();
  rows = sum._nnz();
  member.indices = sum._indices().reshape({rows}).contiguous();
  member.values = (factor == 1 ? sum._values() : sum._values() * factor).contiguous();
  return member.values;
}

void SparseGradients::begin() {
  if (members_.empty()) return;
  const SourceScope scope(group_.communicator(), owner_);
  work_ = group_.all_gather(all_rows_, own_rows_);
}

std::int64_t SparseGradients::rows_of(int rank, std::size_t index) const {
  return all_rows_.const_data_ptr<std::int64_t>()[static_cast<std::size_t>(rank) * size() + index];
}

/// Begins to gather the rows of all ranks.
void SparseGradients::gather(std::size_t index, std::vector<Work>& works) {
  auto& member = members_[index];
  const auto& parameter = member.slice.parameter;
  const auto row_elements = parameter.size(0) > 0 ? parameter.numel() / parameter.size(0) : 0;
  std::vector<std::size_t> rows;
  std::vector<std::size_t> elements;
  std::int64_t total = 0;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const auto count = rows_of(rank, index);
    total += count;
    rows.push_back(static_cast<std::size_t>(count));
    elements.push_back(static_cast<std::size_t>(count * row_elements));
  }
  auto sizes = parameter.sizes().vec();
  sizes[0] = total;
  member.all_indices = at::empty({total}, at::kLong);
  member.all_values = at::empty(sizes, parameter.options().requires_grad(false));
  if (total == 0) return;
  if (!member.indices.defined()) {
    sizes[0] = 0;
    member.indices = at::empty({0}, at::kLong);
    member.values = at::empty(sizes, parameter.options().requires_grad(false));
  }
  auto source = owner_;
  source.bucket = static_cast<std::int32_t>(first_bucket_ + index);
  const SourceScope scope(group_.communicator(), source);
  works.push_back(group_.all_gather(member.all_indices, member.indices, rows));
  if (row_elements > 0) {
    works.push_back(group_.all_gather(member.all_values, member.values, elements));
  }
}

/// The mean of the gathered rows. All ranks add the same rows in the same order, so the bits are
/// equal.
void SparseGradients::average(Member& member) const {
  const auto& parameter = member.slice.parameter;
  const auto dtype = parameter.scalar_type();
  // float16 and bfloat16 are summed in float32, as dense gradients are.
  const auto values = member.all_values.to(at::toOpMathType(dtype));
  const auto sum = at::_sparse_coo_tensor_unsafe(member.all_indices.unsqueeze(0), values,
                                                 parameter.sizes(), values.options())
                       .coalesce();
  const auto mean = (sum._values() / group_.size()).to(dtype);
  member.averaged_rows = sum._indices().squeeze(0);
  // A program may change its gradient in place. averaged_rows must be the same on all ranks.
  member.slice.values =
      at::_sparse_coo_tensor_unsafe(sum._indices().clone(), mean, parameter.sizes(), mean.options())
          ._coalesced_(true);
  member.indices.reset();
  member.values.reset();
  member.all_indices.reset();
  member.all_values.reset();
}

std::exception_ptr SparseGradients::complete(std::span<std::uint8_t> changed) {
  if (members_.empty()) return nullptr;
  work_.wait();
  std::exception_ptr error;
  std::vector<Work> works;
  for (std::size_t i = 0; i < size(); ++i) {
    if (changed[i] == 0) continue;
    std::vector<int> ranks;
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (rows_of(rank, i) == is_not_sparse) ranks.push_back(rank);
    }
    if (ranks.empty()) {
      gather(i, works);
      continue;
    }
    changed[i] = 0;
    if (error != nullptr) continue;
    error = std::make_exception_ptr(invalid_at(
        concat("parameter ", name_of(i)), group_, "got another gradient on ", rank_list(ranks),
        ", expected sparse gradients of the parameter's dtype and sizes, with one sparse "
        "dimension, because the parameter was declared to have sparse gradients: set sparse = "
        "false in its layer, or do not use the parameter in operations with dense gradients"));
  }
  for (auto& work : works) work.wait();
  for (std::size_t i = 0; i < size(); ++i) {
    if (changed[i] != 0) average(members_[i]);
  }
  return error;
}

std::uint64_t SparseGradients::checksum_of_rows(std::size_t index) const {
  const auto& member = members_[index];
  if (!member.averaged_rows.defined() || member.averaged_rows.numel() == 0) return 0;
  return checksum(member.slice.parameter.detach().index_select(0, member.averaged_rows));
}

}  // namespace lockstep::detail
