#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/device/simulation/accelerator.h"

/// Kernels of the simulated device.
namespace lockstep::simulation::operators {
namespace {

using torch::jit::Stack;

bool ours(const at::Tensor& t) { return t.defined() && t.device().type() == accelerator_type; }

Access access(const at::Tensor& t, bool writes) {
  if (t.numel() == 0) return {nullptr, 0, writes};
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return {t.const_data_ptr(), static_cast<std::size_t>(last + 1) * t.element_size(), writes};
}

/// A CPU tensor over the same bytes, for a task. It holds no reference: a task that uses memory
/// which is freed too early finds NaN, as it may on a GPU.
at::Tensor cpu_alias(const at::Tensor& t) {
  const auto options = t.options().device(at::kCPU).pinned_memory(false);
  if (t.numel() == 0) return at::empty_strided(t.sizes(), t.strides(), options);
  void* data = const_cast<void*>(t.const_data_ptr());
  if (ours(t)) data = shadow(data);
  return at::from_blob(
      data, t.sizes(), t.strides(), [](void*) {}, options);
}
at::Tensor on_cpu(const at::Tensor& t) { return ours(t) ? cpu_alias(t) : t; }

/// A tensor of the same shape without memory.
at::Tensor shape_of(const at::Tensor& t) {
  return t.defined() ? at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta)) : t;
}
at::Tensor on_meta(const at::Tensor& t) {
  return t.defined() && !ours(t) && t.dim() == 0 ? t : shape_of(t);
}
/// Values that most kernels take: indices that exist, and probabilities that are not all zero.
at::Tensor sample_on_cpu(const at::Tensor& t) {
  if (!ours(t)) return t;
  const auto options = t.options().device(at::kCPU);
  return at::empty_strided(t.sizes(), t.strides(), options).fill_(t.is_floating_point() ? 1 : 0);
}

/// LibTorch 2.11 reads results that are references to arguments, as nll_loss_forward.output has,
/// after it has released the arguments. A copy keeps their tensors.
void call(const c10::OperatorHandle& op, Stack& stack, bool meta = false) {
  const Stack kept = stack;
  constexpr c10::DispatchKeySet only(c10::DispatchKey::Meta);
  meta ? op.redispatchBoxed(only, &stack) : op.callBoxed(&stack);
}

/// A copy of the value with f applied to every tensor, and simulated devices replaced.
template <class F>
c10::IValue mapped(const c10::IValue& value, c10::DeviceType to, const F& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(f(t));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& t : value.toOptionalTensorVector()) {
      list.push_back(t && t->defined() ? std::optional(f(*t)) : std::nullopt);
    }
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == accelerator_type) return c10::Device(to);
  return value;
}
template <class F>
Stack mapped(const Stack& stack, c10::DeviceType to, const F& f) {
  Stack out;
  for (const auto& value : stack) out.push_back(mapped(value, to, f));
  return out;
}
template <class F>
void each_tensor(const c10::IValue& value, const F& f) {
  mapped(value, c10::DeviceType::CPU, [&](const at::Tensor& t) {
    if (t.defined()) f(t);
    return t;
  });
}

/// The operator with the shapes and values that its results' shapes depend on.
std::string signature(const c10::OperatorHandle& op, const Stack& stack) {
  std::ostringstream text;
  text << op.operator_name() << '|';
  for (const auto& value : stack) {
    bool tensors = false;
    each_tensor(value, [&](const at::Tensor& t) {
      tensors = true;
      text << t.sizes() << t.strides() << t.scalar_type();
    });
    if (!tensors && !value.isTensor() && !value.isGenerator()) text << value;
    text << ';';
  }
  return text.str();
}

/// Tensors without memory, of the shapes of the results. By the Meta kernel; where there is none,
/// by the CPU kernel over other values, once a signature.
Stack result_shapes(const c10::OperatorHandle& op, const Stack& stack) {
  static std::mutex mutex;
  static auto& known = *new std::map<std::string, Stack>;
  // Meta gives convolutions another memory format than the CPU kernel.
  if (op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta) &&
      op.operator_name().name.find("convolution") == std::string::npos) {
    try {
      auto results = mapped(stack, c10::DeviceType::Meta, on_meta);
      call(op, results, true);
      return results;
    } catch (const c10::NotImplementedError&) {
      // The CPU kernel tells.
    }
  }
  const auto name = signature(op, stack);
  const std::lock_guard lock(mutex);
  auto& shapes = known[name];
  if (shapes.empty()) {
    auto results = mapped(stack, c10::DeviceType::CPU, sample_on_cpu);
    call(op, results);
    shapes = mapped(results, c10::DeviceType::Meta, shape_of);
  }
  return shapes;
}

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  return value.toTensorVector();
}

bool is_tensor_or_list(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::TensorType ||
         type->isSubtypeOf(*c10::ListType::ofTensors());
}

bool is_generator(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) {
    return is_generator(*optional->getElementType());
  }
  return type.kind() == c10::TypeKind::GeneratorType;
}

/// An index by a mask has as many elements as the mask has ones, which the host reads.
bool has_mask(const c10::IValue& indices) {
  bool found = false;
  each_tensor(indices, [&](const at::Tensor& t) {
    found = found || t.scalar_type() == at::kBool || t.scalar_type() == at::kByte;
  });
  return found;
}

/// Whether the host needs what the operator computes: the shape of a result, or a number.
bool must_wait(const c10::OperatorHandle& op, const Stack& given) {
  static const std::set<std::string> by_index = {"aten::index", "aten::index_put_",
                                                 "aten::index_put", "aten::_index_put_impl_"};
  const auto& name = op.operator_name().name;
  if (name == "aten::nonzero" || name == "aten::masked_select") return true;
  if (by_index.contains(name)) return has_mask(given[1]);
  for (const auto& result : op.schema().returns()) {
    if (!is_tensor_or_list(result.type())) return true;
  }
  return false;
}

/// Whether the operator changes the argument. Schemas do not say so of running statistics.
bool writes(const c10::OperatorHandle& op, std::size_t argument) {
  const auto& given = op.schema().arguments()[argument];
  if (given.name() == "running_mean" || given.name() == "running_var") return true;
  const auto* info = given.alias_info();
  if (info == nullptr) return false;
  if (info->isWrite()) return true;
  for (const auto& part : info->containedTypes()) {
    if (part.isWrite()) return true;
  }
  return false;
}

/// One call of an operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack given)
      : op_(op), name_(c10::toString(op.operator_name())), given_(std::move(given)) {
    std::optional<c10::Device> device;
    for (const auto& value : given_) {
      each_tensor(value, [&](const at::Tensor& t) {
        if (ours(t) && !device) device = t.device();
      });
      if (value.isDevice() && value.toDevice().type() == accelerator_type && !device) {
        device = value.toDevice();
      }
    }
    device_ = device && device->has_index() ? *device : torch_device(current_device());
  }

  Stack run() {
    const c10::DeviceGuard on(device_);
    if (is_view()) return make_view();
    stream_ = runtime_stream(device_);
    take_host_values();
    find_accesses();
    return must_wait(op_, given_) ? run_now() : run_later();
  }

 private:
  bool is_view() const {
    const auto& returns = op_.schema().returns();
    if (returns.size() != 1 || returns[0].alias_info() == nullptr) return false;
    return !returns[0].alias_info()->isWrite() && !given_.empty() && given_[0].isTensor() &&
           returns[0].type()->kind() == c10::TypeKind::TensorType;
  }

  /// Views of LibTorch that are kernels, as unfold: the CPU says the shape, no byte is touched.
  Stack make_view() {
    const auto base = given_[0].toTensor();
    auto here = mapped(given_, c10::DeviceType::CPU, on_cpu);
    const auto cpu_base = here[0].toTensor();
    op_.callBoxed(&here);
    const auto& view = here[0].toTensor();
    TORCH_CHECK(view.scalar_type() == base.scalar_type(), name_, " is not simulated");
    const auto offset = base.storage_offset() + view.storage_offset() - cpu_base.storage_offset();
    return {at::as_strided(base, view.sizes(), view.strides(), offset)};
  }

  /// Refuses what CUDA's kernel refuses, and the CPU's takes.
  void expect_what_cuda_takes() const {
    if (op_.operator_name().name != "aten::native_batch_norm_backward") return;
    for (const auto* name : {"weight", "save_mean", "save_invstd"}) {
      const auto at = op_.schema().argumentIndexWithName(name).value();
      TORCH_CHECK(given_[static_cast<std::size_t>(at)].isTensor(), name_, ": got no ", name);
    }
  }

  /// Host tensors are read and random numbers are drawn now.
  void take_host_values() {
    for (std::size_t i = 0; i < given_.size(); ++i) {
      given_[i] = mapped(given_[i], accelerator_type, [&](const at::Tensor& t) {
        if (!t.defined() || ours(t)) return t;
        TORCH_CHECK(t.dim() == 0 || may_take_host_tensors(), name_, ": expected all tensors on ",
                    device_, ", but argument ", op_.schema().arguments()[i].name(), " is on ",
                    t.device());
        return t.clone();
      });
      if (is_generator(*op_.schema().arguments()[i].type())) {
        given_[i] = next_generator(given_[i].isGenerator() ? given_[i].toGenerator()
                                                           : device_generator(device_.index()));
      }
    }
  }
  bool may_take_host_tensors() const {
    return op_.operator_name().name.starts_with("aten::index") ||
           op_.operator_name().name.starts_with("aten::_index_put");
  }

  void find_accesses() {
    expect_what_cuda_takes();
    const auto& schema = op_.schema();
    results_.resize(schema.returns().size());
    for (std::size_t i = 0; i < given_.size(); ++i) {
      const bool written = writes(op_, i);
      each_tensor(given_[i], [&](const at::Tensor& t) {
        if (ours(t)) accesses_.push_back(access(t, written));
      });
      const auto* info = schema.arguments()[i].alias_info();
      if (!written || info == nullptr) continue;
      for (std::size_t r = 0; r < results_.size(); ++r) {
        const auto* result = schema.returns()[r].alias_info();
        if (result != nullptr && result->beforeSets() == info->beforeSets())
          results_[r] = given_[i];
      }
    }
  }

  Stack run_now() {
    enqueue(stream_, name_, Kind::kernel, accesses_, [] {});
    synchronize(stream_);
    auto here = mapped(given_, c10::DeviceType::CPU, on_cpu);
    {
      const at::AutoDispatchBelowAutograd below;
      call(op_, here);
    }
    Stack results;
    for (std::size_t r = 0; r < here.size(); ++r) {
      results.push_back(
          results_[r].isNone()
              ? mapped(here[r], accelerator_type, [&](const at::Tensor& t) { return upload(t); })
              : results_[r]);
    }
    return results;
  }
  /// A result that is complete, as a device tensor. The host waited already, so this copy is free.
  at::Tensor upload(const at::Tensor& t) {
    if (!t.defined()) return t;
    const auto made = make(t);
    enqueue(stream_, name_, Kind::internal, {access(made, true)},
            [to = cpu_alias(made), t] { at::Tensor(to).copy_(t); });
    return made;
  }

  Stack run_later() {
    const auto& schema = op_.schema();
    // A kernel may resize what it is given to write to, and an alias of memory cannot be resized.
    Stack given = given_;
    bool has_out = false;
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (!schema.arguments()[i].is_out() || !given[i].isTensor()) continue;
      given[i] = at::empty({0}, given[i].toTensor().options().device(at::kCPU));
      has_out = true;
    }
    bool complete = !has_out;
    for (const auto& result : results_) complete = complete && !result.isNone();
    std::vector<std::pair<std::size_t, std::vector<at::Tensor>>> targets;  // to copy results to
    if (!complete) {
      const auto shapes = result_shapes(op_, given);
      for (std::size_t r = 0; r < results_.size(); ++r) {
        if (results_[r].isTensor() && has_out) {
          resize(results_[r].toTensor(), shapes[r].toTensor());
        } else if (results_[r].isNone()) {
          results_[r] = mapped(shapes[r], accelerator_type,
                               [&](const at::Tensor& shape) { return make(shape); });
        } else {
          continue;
        }
        auto& aliases = targets.emplace_back(r, std::vector<at::Tensor>{}).second;
        for (const auto& t : tensors_of(results_[r])) aliases.push_back(on_cpu(t));
      }
    }
    auto here = std::make_shared<Stack>(mapped(given, c10::DeviceType::CPU, on_cpu));
    enqueue(stream_, name_, Kind::kernel, accesses_, [op = op_, here, targets] {
      const at::AutoDispatchBelowAutograd below;
      call(op, *here);
      for (const auto& [r, aliases] : targets) {
        const auto& result = (*here)[r];
        for (std::size_t i = 0; i < aliases.size(); ++i) {
          if (!aliases[i].defined() || aliases[i].numel() == 0) continue;
          at::Tensor(aliases[i]).copy_(tensors_of(result)[i]);
        }
      }
    });
    return {results_.begin(), results_.end()};
  }
  void resize(const at::Tensor& t, const at::Tensor& shape) {
    if (!shape.defined() || t.sizes() == shape.sizes()) return;
    t.resize_(shape.sizes());
    accesses_.push_back(access(t, true));
  }
  at::Tensor make(const at::Tensor& shape) {
    if (!shape.defined()) return {};
    const auto options = at::TensorOptions(device_).dtype(shape.scalar_type());
    auto made = at::empty_strided(shape.sizes(), shape.strides(), options);
    accesses_.push_back(access(made, true));
    return made;
  }

  c10::OperatorHandle op_;
  std::string name_;
  Stack given_;
  c10::Device device_{at::kCPU};
  Stream* stream_ = nullptr;
  std::vector<Access> accesses_;
  std::vector<c10::IValue> results_;  // None: the call makes it
};

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const auto count = op.schema().arguments().size();
  Stack given(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  for (auto& result : Call(op, std::move(given)).run()) stack->push_back(std::move(result));
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard on(device.value_or(at::Device(accelerator_type)));
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), c10::GetAllocator(accelerator_type),
      c10::DispatchKeySet(accelerator_key), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard on(device.value_or(at::Device(accelerator_type)));
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      c10::GetAllocator(accelerator_type), c10::DispatchKeySet(accelerator_key),
      c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional(offset->expect_int()) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size,
                         c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size),
                                    C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, c10::SymInt offset,
                        c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                              offset.expect_int());
  return self;
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return at::native::set_tensor_(self, source);
}

at::Tensor& set_empty(at::Tensor& self) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(
      c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::GetAllocator(accelerator_type), true));
  impl->set_sizes_contiguous({0});
  return self;
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard on(self.device());
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != sizes) impl->set_sizes_contiguous(sizes);
  if (format) impl->empty_tensor_restride(*format);
  const auto elements = self.storage_offset() + c10::multiply_integers(sizes);
  const auto bytes = static_cast<std::size_t>(elements) * self.element_size();
  if (bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
  return self;
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& from, bool non_blocking) {
  if (self.numel() == 0) return self;
  if (from.sizes() != self.sizes()) return copy(self, from.expand_as(self), non_blocking);
  TORCH_CHECK(!ours(self) || !ours(from) || self.device() == from.device(),
              "copies between devices are not simulated");
  const auto device = ours(self) ? self.device() : from.device();
  const c10::DeviceGuard on(device);
  auto* stream = runtime_stream(device);
  std::vector<Access> accesses{access(from, false), access(self, true)};
  if (ours(self) && ours(from)) {
    enqueue(stream, "aten::copy_", Kind::kernel, accesses,
            [to = cpu_alias(self), source = cpu_alias(from)] {
              const at::AutoDispatchBelowAutograd below;
              at::Tensor(to).copy_(source);
            });
    return self;
  }
  // Only pinned memory is copied asynchronously, and only if its bytes go as they are.
  const auto& host = ours(self) ? from : self;
  const bool pinned = is_pinned(host.const_data_ptr()) &&
                      self.scalar_type() == from.scalar_type() && host.is_contiguous();
  const bool asynchronous = pinned && non_blocking;
  // The source is read now if it need not outlive this call.
  auto source = ours(from) || pinned ? cpu_alias(from) : from.clone();
  enqueue(stream, "aten::copy_", Kind::copy, accesses, [to = cpu_alias(self), source] {
    const at::AutoDispatchBelowAutograd below;
    at::Tensor(to).copy_(source);
  });
  if (asynchronous) {
    add_user(host.const_data_ptr(), stream);
  } else {
    synchronize(stream);
  }
  return self;
}

at::Scalar item(const at::Tensor& self) {
  const c10::DeviceGuard on(self.device());
  auto* stream = runtime_stream(self.device());
  enqueue(stream, "aten::_local_scalar_dense", Kind::copy, {access(self, false)}, [] {});
  synchronize(stream);
  return at::native::_local_scalar_dense_cpu(cpu_alias(self));
}

void record_stream(at::Tensor& self, at::Stream stream) {
  c10::impl::VirtualGuardImpl(accelerator_type)
      .recordDataPtrOnStream(self.storage().data_ptr(), stream);
}

/// Lets Module::to() move a parameter from and to the device, as it does for CUDA.
bool may_share_data(const at::Tensor& self, const at::Tensor& from) {
  return self.layout() == at::kStrided && from.layout() == at::kStrided;
}

}  // namespace
}  // namespace lockstep::simulation::operators

namespace lockstep::simulation {

void register_operators() {
  using torch::CppFunction;
  constexpr auto key = accelerator_key;
  // Never destroyed: autograd's threads may outlive static objects.
  auto& aten = *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  auto& all = *new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  aten.impl("empty.memory_format", TORCH_FN(operators::empty));
  aten.impl("empty_strided", TORCH_FN(operators::empty_strided));
  aten.impl("as_strided", TORCH_FN(operators::as_strided));
  aten.impl("view", TORCH_FN(operators::view));
  aten.impl("_reshape_alias", TORCH_FN(operators::reshape_alias));
  aten.impl("set_.source_Storage_storage_offset", TORCH_FN(operators::set_storage));
  aten.impl("set_.source_Tensor", TORCH_FN(operators::set_tensor));
  aten.impl("set_", TORCH_FN(operators::set_empty));
  aten.impl("resize_", TORCH_FN(operators::resize));
  aten.impl("copy_", TORCH_FN(operators::copy));
  aten.impl("_local_scalar_dense", TORCH_FN(operators::item));
  aten.impl("record_stream", TORCH_FN(operators::record_stream));
  aten.impl("_has_compatible_shallow_copy_type", TORCH_FN(operators::may_share_data));
  // LibTorch composes these of others on a device that has no kernel. A GPU has one.
  const auto one_kernel = [&aten](const std::string& name) {
    aten.impl(name.c_str(), CppFunction::makeFromBoxedFunction<&operators::fallback>());
  };
  one_kernel("convolution");
  one_kernel("convolution_backward");
  one_kernel("index.Tensor");
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!op.name.starts_with("aten::_foreach_")) continue;
    if (op.overload_name.find("out") != std::string::npos) continue;
    one_kernel(op.name.substr(6) + (op.overload_name.empty() ? "" : "." + op.overload_name));
  }
  all.fallback(CppFunction::makeFromBoxedFunction<&operators::fallback>());
}

void resize_storage(const c10::Storage& storage, std::size_t bytes) {
  const c10::DeviceGuard on(storage.device());
  auto fresh = c10::GetAllocator(accelerator_type)->allocate(bytes);
  if (const auto kept = std::min(bytes, storage.nbytes()); kept > 0) {
    void* const to = fresh.get();
    const void* const from = storage.data();
    enqueue(runtime_stream(storage.device()), "aten::resize_", Kind::kernel,
            {{from, kept, false}, {to, kept, true}},
            [=] { std::memcpy(shadow(to), shadow(from), kept); });
  }
  auto& changed = const_cast<c10::Storage&>(storage);
  changed.set_data_ptr(std::move(fresh));
  changed.set_nbytes(bytes);
}

}  // namespace lockstep::simulation
