#include "formats/pickle.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <c10/util/strides.h>
#include <endian.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

namespace {

class Pickler {
 public:
  explicit Pickler(std::vector<at::Tensor>& storages) : storages_(storages) {}

  std::string run(const c10::IValue& value) {
    put(Opcode::protocol);
    put_number(std::uint8_t{2});
    put(value, 0);
    put(Opcode::stop);
    return std::move(out_);
  }

 private:
  void put(Opcode opcode) { out_ += static_cast<char>(opcode); }

  template <class T>
  void put_number(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }

  void put(const c10::IValue& value, int depth) {
    if (depth > max_depth)
      throw CheckpointError(concat("expected at most ", max_depth, " levels of nesting, got more"));
    if (value.isNone())
      put(Opcode::none);
    else if (value.isBool())
      put(value.toBool() ? Opcode::true_ : Opcode::false_);
    else if (value.isInt())
      put_integer(value.toInt());
    else if (value.isDouble())
      put_real(value.toDouble());
    else if (value.isString())
      put_text(value.toStringRef());
    else if (value.isTensor())
      put_tensor(value.toTensor());
    else if (value.isTuple())
      put_tuple(value.toTupleRef().elements(), depth);
    else if (value.isList())
      put_list(value.toListRef(), depth);
    else if (value.isGenericDict())
      put_dict(value.toGenericDict(), depth);
    else
      throw CheckpointError(concat("cannot store ", value.tagKind()));
  }

  void put_integer(std::int64_t value) {
    if (value == static_cast<std::int32_t>(value)) {
      put(Opcode::int4);
      put_number(static_cast<std::int32_t>(value));
    } else {
      put(Opcode::long1);
      put_number(static_cast<std::uint8_t>(sizeof(value)));
      put_number(value);
    }
  }

  void put_real(double value) {
    put(Opcode::real);
    put_number(htobe64(std::bit_cast<std::uint64_t>(value)));
  }

  void put_text(std::string_view text) {
    if (text.size() > std::numeric_limits<std::uint32_t>::max())
      throw CheckpointError(concat("cannot store a text of ", text.size(), " bytes"));
    put(Opcode::text);
    put_number(static_cast<std::uint32_t>(text.size()));
    out_ += text;
  }

  void put_global(std::string_view module, std::string_view name) {
    put(Opcode::global);
    out_ += concat(module, '\n', name, '\n');
  }

  void put_tuple(at::ArrayRef<c10::IValue> parts, int depth) {
    put(Opcode::mark);
    for (const c10::IValue& part : parts) put(part, depth + 1);
    put(Opcode::tuple);
  }

  void put_list(at::ArrayRef<c10::IValue> parts, int depth) {
    put(Opcode::empty_list);
    put(Opcode::mark);
    for (const c10::IValue& part : parts) put(part, depth + 1);
    put(Opcode::appends);
  }

  void put_dict(const c10::impl::GenericDict& dict, int depth) {
    put(Opcode::empty_dict);
    put(Opcode::mark);
    for (const auto& item : dict) {
      put(item.key(), depth + 1);
      put(item.value(), depth + 1);
    }
    put(Opcode::set_items);
  }

  void put_sizes(at::IntArrayRef sizes) {
    put(Opcode::mark);
    for (const std::int64_t size : sizes) put_integer(size);
    put(Opcode::tuple);
  }

  // torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, backward_hooks)
  // torch._utils._rebuild_tensor_v3(…, dtype)
  void put_tensor(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.layout() != at::kStrided)
      throw CheckpointError("cannot store a tensor that is undefined or not dense");
    const auto dtype = tensor.scalar_type();
    const auto* const typed = std::ranges::find(storage_names, dtype, &StorageName::dtype);
    const auto* const untyped = std::ranges::find(untyped_dtype_names, dtype, &StorageName::dtype);
    const bool is_typed = typed != std::end(storage_names);
    if (!is_typed && untyped == std::end(untyped_dtype_names))
      throw CheckpointError(concat("cannot store dtype ", dtype));
    put_global("torch._utils", is_typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    put(Opcode::mark);
    put(Opcode::mark);
    put_text("storage");
    if (is_typed)
      put_torch_global(typed->name);
    else
      put_global(untyped_storage_module, untyped_storage_name);
    put_text(std::to_string(key_of(tensor)));
    put_text("cpu");
    put_integer(is_typed ? tensor.numel() : static_cast<std::int64_t>(tensor.nbytes()));
    put(Opcode::tuple);
    put(Opcode::persistent);
    put_integer(0);
    put_sizes(tensor.sizes());
    put_sizes(c10::contiguous_strides(tensor.sizes()));
    put(Opcode::false_);
    put_global("collections", "OrderedDict");
    put(Opcode::empty_tuple);
    put(Opcode::reduce);
    if (!is_typed) put_torch_global(untyped->name);
    put(Opcode::tuple);
    put(Opcode::reduce);
  }

  void put_torch_global(std::string_view name) {
    put_global("torch", name.substr(std::string_view("torch.").size()));
  }

  std::size_t key_of(const at::Tensor& tensor) {
    const at::Tensor contiguous = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
    const auto memory =
        std::tuple(contiguous.const_data_ptr(), contiguous.nbytes(), contiguous.scalar_type());
    const auto [entry, is_new] = keys_.emplace(memory, storages_.size());
    // storages_ keeps the memory alive, so that no later tensor can have the same address.
    if (is_new) storages_.push_back(contiguous);
    return entry->second;
  }

  std::vector<at::Tensor>& storages_;
  std::map<std::tuple<const void*, std::size_t, at::ScalarType>, std::size_t> keys_;
  std::string out_;
};

}  // namespace

std::string pickle(const c10::IValue& value, std::vector<at::Tensor>& storages) {
  return Pickler(storages).run(value);
}

}  // namespace lockstep::detail
