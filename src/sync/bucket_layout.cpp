#include "sync/bucket_layout.h"

#include <ATen/ops/empty.h>
#include <c10/util/strides.h>

#include <cstdint>
#include <utility>

#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/exchange.h"

namespace lockstep::inline v0_2 {

at::Tensor detail::alias(const at::Tensor& flat, std::size_t offset, const at::Tensor& parameter) {
  const c10::DimVector strides = parameter.is_non_overlapping_and_dense()
                                     ? c10::DimVector(parameter.strides())
                                     : c10::contiguous_strides(parameter.sizes());
  auto values = at::empty({0}, flat.options());
  values.set_(flat.storage(), static_cast<std::int64_t>(offset), parameter.sizes(), strides);
  return values;
}

Bucket::Bucket(std::size_t index, std::size_t numel, at::ScalarType dtype,
               std::vector<Slice> slices, const Group& group)
    : group_(group),
      index_(index),
      values_(group.empty({static_cast<std::int64_t>(numel)}, dtype)),
      slices_(std::move(slices)) {
  values_.zero_();
  for (auto& slice : slices_) slice.values = detail::alias(values_, slice.offset, slice.parameter);
}

}  // namespace lockstep

namespace lockstep::inline v0_2::detail {

Layout::Layout(const Bucket& bucket) {
  for (const auto& slice : bucket.slices()) {
    parts_.push_back({.name = slice.name,
                      .offset = slice.offset,
                      .numel = static_cast<std::size_t>(slice.values.numel()),
                      .sizes = slice.values.sizes().vec(),
                      .strides = slice.values.strides().vec()});
  }
  if (parts_.empty()) {
    const auto numel = bucket.values().numel();
    parts_.push_back({.name = concat("bucket", bucket.index()),
                      .offset = 0,
                      .numel = static_cast<std::size_t>(numel),
                      .sizes = {numel},
                      .strides = {1}});
  }
}

std::size_t Layout::numel() const {
  std::size_t sum = 0;
  for (const auto& part : parts_) sum += part.numel;
  return sum;
}

State Layout::split(const at::Tensor& flat, std::string_view what) const {
  State state;
  for (const auto& part : parts_) {
    state.emplace(concat(part.name, '.', what),
                  flat.as_strided(part.sizes, part.strides,
                                  flat.storage_offset() + static_cast<std::int64_t>(part.offset)));
  }
  return state;
}

void Layout::join(const State& state, std::string_view what, const at::Tensor& flat) const {
  for (auto& [name, values] : split(flat, what)) {
    const auto parameter = name.substr(0, name.size() - what.size() - 1);
    values.copy_(find(state, parameter, what, values.sizes()));
  }
}

const std::string& Layout::name_at(std::size_t element) const {
  const Part* last = &parts_.front();
  for (const auto& part : parts_) {
    if (part.offset <= element && part.offset >= last->offset) last = &part;
  }
  return last->name;
}

const at::Tensor& find(const State& state, const std::string& parameter, std::string_view what,
                       at::IntArrayRef sizes) {
  const auto found = state.find(concat(parameter, '.', what));
  if (found == state.end()) {
    throw InvalidArgument(concat("exchange: the state has no ", what, " of parameter ", parameter));
  }
  if (found->second.sizes() != sizes) {
    throw InvalidArgument(concat("exchange: got a ", what, " of parameter ", parameter,
                                 " with sizes ", found->second.sizes(), ", expected ", sizes));
  }
  return found->second;
}

void refuse_not_finite(std::string_view strategy, const std::string& parameter, int rank) {
  throw InvalidArgument(concat("strategy ", strategy, ": the gradient of parameter ", parameter,
                               " on rank ", rank, " has NaN or Inf, expected finite numbers"));
}

void expect_dtype(std::string_view strategy, const Bucket& bucket,
                  std::initializer_list<at::ScalarType> supported) {
  const auto got = bucket.values().scalar_type();
  std::string expected;
  for (const auto dtype : supported) {
    if (dtype == got) return;
    expected += concat(expected.empty() ? "" : " or ", toString(dtype));
  }
  throw InvalidArgument(concat("strategy ", strategy, ": got parameters of ", toString(got),
                               bucket.slices().empty() ? "" : ", such as ",
                               bucket.slices().empty() ? "" : bucket.slices().front().name,
                               ", expected ", expected,
                               ": choose another strategy for them, alone by "
                               "DataParallelOptions::strategies, or convert them"));
}

}  // namespace lockstep::detail
