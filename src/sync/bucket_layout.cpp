#include "sync/bucket_layout.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/sum.h>
#include <c10/core/Storage.h>
#include <c10/util/strides.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/text.h"
#include "group/tensors.h"
#include "lockstep/error.h"
#include "lockstep/exchange.h"

namespace lockstep::inline v0_2 {

namespace {

/// A tensor of the parameter's sizes over a storage, as detail::alias() makes it.
at::Tensor over(const c10::Storage& storage, std::size_t offset, const at::Tensor& parameter,
                const at::TensorOptions& options) {
  const c10::DimVector strides = parameter.is_non_overlapping_and_dense()
                                     ? c10::DimVector(parameter.strides())
                                     : c10::contiguous_strides(parameter.sizes());
  auto values = at::empty({0}, options);
  values.set_(storage, static_cast<std::int64_t>(offset), parameter.sizes(), strides);
  return values;
}

/// A storage of its own over elements of a flat tensor, whose memory it keeps.
c10::Storage part_of(const at::Tensor& flat, std::size_t offset, std::int64_t numel) {
  const auto size = flat.element_size();
  c10::DataPtr data(
      static_cast<std::byte*>(flat.data_ptr()) + offset * size, new c10::Storage(flat.storage()),
      [](void* storage) { delete static_cast<c10::Storage*>(storage); }, flat.device());
  return {c10::Storage::use_byte_size_t(), static_cast<std::size_t>(numel) * size, std::move(data)};
}

}  // namespace

at::Tensor detail::alias(const at::Tensor& flat, std::size_t offset, const at::Tensor& parameter) {
  return over(flat.storage(), offset, parameter, flat.options());
}

Bucket::Bucket(std::size_t index, std::size_t numel, at::ScalarType dtype,
               std::vector<Slice> slices, const Group& group)
    : Bucket(index, group.empty({static_cast<std::int64_t>(numel)}, dtype).zero_(),
             std::move(slices), group) {}

Bucket::Bucket(std::size_t index, at::Tensor values, std::vector<Slice> slices, const Group& group)
    : group_(group), index_(index), slices_(std::move(slices)) {
  move_to(std::move(values));
}

void Bucket::move_to(at::Tensor values) {
  values_ = std::move(values);
  for (auto& slice : slices_) {
    const auto storage = part_of(values_, slice.offset, slice.parameter.numel());
    slice.values = over(storage, 0, slice.parameter, values_.options());
  }
}

void Bucket::unshare(std::size_t index) {
  auto& [name, parameter, offset, values] = slices_[index];
  if (values.use_count() == 1 && values.storage().use_count() == 1) return;
  const at::NoGradGuard no_grad;
  // All tensors over a storage, views and detached ones included, move with its memory. The bucket
  // stays in place, where other ranks read it.
  auto elements = at::empty({0}, values_.options());
  elements.set_(values.storage(), 0, {parameter.numel()}, {1});
  const auto copy = elements.clone().storage();
  std::swap(values.storage().mutable_data_ptr(), copy.mutable_data_ptr());
  copy.unsafeGetStorageImpl()->set_resizable(false);
  values = over(copy, 0, parameter, values_.options());
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
  if (!flat.defined()) return state;
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
    values.copy_(find(state, parameter, what, values));
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
                       const at::Tensor& like) {
  const auto found = state.find(concat(parameter, '.', what));
  if (found == state.end()) {
    throw InvalidArgument(concat("exchange: the state has no ", what, " of parameter ", parameter));
  }
  const auto& tensor = found->second;
  if (tensor.sizes() != like.sizes() || tensor.scalar_type() != like.scalar_type()) {
    throw InvalidArgument(concat("exchange: got a ", what, " of parameter ", parameter, " of ",
                                 tensor.scalar_type(), " with sizes ", tensor.sizes(),
                                 ", expected ", like.scalar_type(), " with sizes ", like.sizes()));
  }
  return tensor;
}

averaging::Elements elements_of(const at::Tensor& values) {
  return {.data = values.data_ptr(),
          .count = static_cast<std::size_t>(values.numel()),
          .dtype = dtype_of(values.scalar_type(), "strategy"),
          .owner = std::make_shared<at::Tensor>(values)};
}

averaging::Averaged averaged(const Bucket& bucket) {
  const Layout layout(bucket);
  const auto name_at = [layout](std::size_t element) {
    return concat("parameter ", layout.name_at(element));
  };
  return {.elements = elements_of(bucket.values()),
          .arrays = {.numel = layout.numel(),
                     .name_at = name_at,
                     .remedy = "choose another strategy for them (in C++ alone by "
                               "DataParallelOptions::strategies), or convert them"},
          .group = bucket.group().communicator()};
}

bool is_finite(const at::Tensor& values) {
  // The sum is fast, and finite only if all elements are. A sum of finite elements may overflow.
  return std::isfinite(at::sum(values).item<double>()) || at::isfinite(values).all().item<bool>();
}

}  // namespace lockstep::detail
