#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/neg.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "core/text.h"
#include "formats/pickle.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

namespace {

/// A global that a pickle may refer to: a class of storages, a dtype, or a callable.
struct Global : torch::CustomClassHolder {
  enum class Kind {
    storage,
    dtype,
    ordered_dict,
    size,
    rebuild_tensor,
    rebuild_tensor_of_dtype,
    rebuild_parameter
  };
  Global(std::string global, Kind of, at::ScalarType element = at::kByte)
      : name(std::move(global)), kind(of), dtype(element) {}

  std::string name;
  Kind kind;
  at::ScalarType dtype;
};

class Unpickler {
 public:
  Unpickler(std::string_view bytes, const StorageSource& storages)
      : bytes_(bytes), storages_(storages) {}

  c10::IValue run() {
    for (;;) {
      const auto opcode = static_cast<Opcode>(take(1)[0]);
      if (opcode == Opcode::stop) return without_global(pop());
      step(opcode);
    }
  }

 private:
  /// Nesting of a list, dict or tuple.
  struct Container {
    int depth = 1;
    /// The container is an element of another one. Nothing may be added to it, so that no container
    /// can contain itself.
    bool sealed = false;
  };

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw CheckpointError(concat("offset ", next_, " of data.pkl: ", parts...));
  }

  void step(Opcode opcode) {
    switch (opcode) {
      case Opcode::protocol:
        if (const int protocol = number<std::uint8_t>(); protocol != 2)
          fail("expected pickle protocol 2, found ", protocol);
        return;
      case Opcode::mark:
        marks_.push_back(stack_.size());
        return;
      case Opcode::put:
        memo_[number<std::uint8_t>()] = top();
        return;
      case Opcode::long_put:
        memo_[number<std::uint32_t>()] = top();
        return;
      case Opcode::get:
        return push(memo_value(number<std::uint8_t>()));
      case Opcode::long_get:
        return push(memo_value(number<std::uint32_t>()));
      case Opcode::none:
        return push({});
      case Opcode::true_:
        return push(true);
      case Opcode::false_:
        return push(false);
      case Opcode::int1:
        return push(std::int64_t{number<std::uint8_t>()});
      case Opcode::int2:
        return push(std::int64_t{number<std::uint16_t>()});
      case Opcode::int4:
        return push(std::int64_t{number<std::int32_t>()});
      case Opcode::long1:
        return push(long_number());
      case Opcode::real:
        return push(real());
      case Opcode::text:
        return push(std::string(take(number<std::uint32_t>())));
      case Opcode::empty_tuple:
        return push(tuple({}));
      case Opcode::tuple:
        return push(tuple(pop_to_mark()));
      case Opcode::tuple1:
        return push(tuple(pop_last(1)));
      case Opcode::tuple2:
        return push(tuple(pop_last(2)));
      case Opcode::tuple3:
        return push(tuple(pop_last(3)));
      case Opcode::empty_list:
        return push(new_container(c10::impl::GenericList(c10::AnyType::get())));
      case Opcode::append:
        return append(pop_last(1));
      case Opcode::appends:
        return append(pop_to_mark());
      case Opcode::empty_dict:
        return push(empty_dict());
      case Opcode::set_item:
        return set(pop_last(2));
      case Opcode::set_items:
        return set(pop_to_mark());
      case Opcode::global:
        return push(global());
      case Opcode::persistent:
        return push(storage(pop()));
      case Opcode::reduce:
        return reduce();
      case Opcode::build:
        // The state that torch.save adds to a state dict has the versions of modules. Ignores it.
        pop();
        if (!top().isGenericDict())
          fail("expected the state of a dict, found the state of ", kind(top()));
        return;
      default:
        fail("found opcode ", static_cast<int>(opcode), ", which state dicts do not use");
    }
  }

  std::string_view take(std::size_t count) {
    if (count > bytes_.size() - next_)
      fail("expected ", count, " more bytes, found ", bytes_.size() - next_);
    next_ += count;
    return bytes_.substr(next_ - count, count);
  }

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::int64_t long_number() {
    const std::string_view digits = take(number<std::uint8_t>());
    if (digits.empty()) return 0;
    if (digits.size() > sizeof(std::int64_t)) fail("found an integer of ", digits.size(), " bytes");
    std::int64_t value = digits.back() < 0 ? -1 : 0;
    std::memcpy(&value, digits.data(), digits.size());
    return value;
  }

  double real() {
    std::string bytes(take(sizeof(double)));
    std::reverse(bytes.begin(), bytes.end());
    double value;
    std::memcpy(&value, bytes.data(), sizeof(double));
    return value;
  }

  std::string_view line() {
    const std::size_t end = bytes_.find('\n', next_);
    if (end == std::string_view::npos) fail("expected a line, found the end");
    const std::string_view text = take(end - next_);
    take(1);
    return text;
  }

  void push(c10::IValue value) { stack_.push_back(std::move(value)); }

  const c10::IValue& top() const {
    if (stack_.size() <= floor()) fail("expected a value, found none");
    return stack_.back();
  }

  c10::IValue pop() {
    c10::IValue value = top();
    stack_.pop_back();
    return value;
  }

  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  std::vector<c10::IValue> pop_last(std::size_t count) {
    if (stack_.size() - floor() < count) fail("expected ", count, " values, found fewer");
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<c10::IValue> values(first, stack_.end());
    stack_.erase(first, stack_.end());
    return values;
  }

  std::vector<c10::IValue> pop_to_mark() {
    if (marks_.empty()) fail("expected a mark, found none");
    std::vector<c10::IValue> values = pop_last(stack_.size() - marks_.back());
    marks_.pop_back();
    return values;
  }

  const c10::IValue& memo_value(std::uint32_t index) const {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail("expected memo ", index, " to be defined before, found none");
    return found->second;
  }

  static bool is_container(const c10::IValue& value) {
    return value.isList() || value.isGenericDict() || value.isTuple();
  }

  static std::string kind(const c10::IValue& value) {
    const Global* const global = as_global(value);
    return global != nullptr ? concat("the global '", global->name, "'") : value.tagKind();
  }

  static const Global* as_global(const c10::IValue& value) {
    return value.isCapsule() ? dynamic_cast<const Global*>(value.toCapsule().get()) : nullptr;
  }

  c10::IValue new_container(c10::IValue container) {
    containers_[container.internalToPointer()] = {};
    return container;
  }

  c10::IValue empty_dict() {
    return new_container(c10::impl::GenericDict(c10::AnyType::get(), c10::AnyType::get()));
  }

  /// Checks that a value has no global. Only arguments of calls, which are tuples, may have them.
  const c10::IValue& without_global(const c10::IValue& value) const {
    const auto check = [&](const c10::IValue& part) {
      if (part.isCapsule()) fail("expected a value, found ", kind(part));
    };
    check(value);
    if (value.isTuple())
      for (const c10::IValue& part : value.toTupleRef().elements()) check(part);
    return value;
  }

  void add_part(Container& container, const c10::IValue& value) {
    if (!is_container(value)) return;
    Container& part = containers_.at(value.internalToPointer());
    part.sealed = true;
    container.depth = std::max(container.depth, part.depth + 1);
    if (container.depth > max_depth)
      fail("expected at most ", max_depth, " levels of nesting, found more");
  }

  c10::IValue tuple(std::vector<c10::IValue> values) {
    Container container{.depth = 1, .sealed = true};
    for (const c10::IValue& value : values) {
      if (!value.isCapsule()) without_global(value);
      add_part(container, value);
    }
    c10::IValue result = c10::ivalue::Tuple::create(std::move(values));
    containers_[result.internalToPointer()] = container;
    return result;
  }

  Container& open_container(bool wanted) {
    if (!wanted) fail("expected a list or dict to add to, found ", kind(top()));
    Container& container = containers_.at(top().internalToPointer());
    if (container.sealed)
      fail("found an addition to a list or dict that is already part of another value");
    return container;
  }

  void append(const std::vector<c10::IValue>& values) {
    for (const c10::IValue& value : values) {
      Container extended;
      add_part(extended, without_global(value));
      Container& container = open_container(top().isList());
      container.depth = std::max(container.depth, extended.depth);
      top().toList().push_back(value);
    }
  }

  void set(const std::vector<c10::IValue>& values) {
    if (values.size() % 2 != 0) fail("expected pairs of key and value, found an odd number");
    for (std::size_t i = 0; i < values.size(); i += 2) {
      if (!values[i].isString() && !values[i].isInt())
        fail("expected a string or integer as key, found ", kind(values[i]));
      Container extended;
      add_part(extended, without_global(values[i + 1]));
      Container& container = open_container(top().isGenericDict());
      container.depth = std::max(container.depth, extended.depth);
      top().toGenericDict().insert_or_assign(values[i], values[i + 1]);
    }
  }

  c10::IValue global() {
    const std::string module(line());
    const std::string name = concat(module, '.', line());
    const auto make = [&](Global::Kind kind, at::ScalarType dtype = at::kByte) {
      return c10::IValue::make_capsule(c10::make_intrusive<Global>(name, kind, dtype));
    };
    if (name == "collections.OrderedDict") return make(Global::Kind::ordered_dict);
    if (name == "torch.Size") return make(Global::Kind::size);
    if (name == "torch._utils._rebuild_tensor_v2") return make(Global::Kind::rebuild_tensor);
    if (name == "torch._utils._rebuild_tensor_v3")
      return make(Global::Kind::rebuild_tensor_of_dtype);
    if (name == "torch._utils._rebuild_parameter") return make(Global::Kind::rebuild_parameter);
    for (const StorageName& known : storage_names)
      if (known.name == name) return make(Global::Kind::storage, known.dtype);
    if (name == concat(untyped_storage_module, '.', untyped_storage_name))
      return make(Global::Kind::storage);
    for (const StorageName& known : untyped_dtype_names)
      if (known.name == name) return make(Global::Kind::dtype, known.dtype);
    fail("found the global '", name,
         "': only tensors, dicts, lists, tuples, numbers and strings are supported; save "
         "state_dict(), not "
         "the object");
  }

  c10::IValue storage(const c10::IValue& id) {
    // ("storage", class, key, location, elements)
    if (id.isTuple()) {
      const at::ArrayRef<c10::IValue> parts = id.toTupleRef().elements().asArrayRef();
      const Global* const type = parts.size() == 5 ? as_global(parts[1]) : nullptr;
      if (type != nullptr && type->kind == Global::Kind::storage && parts[0].isString() &&
          parts[0].toStringRef() == "storage" && parts[2].isString() && parts[4].isInt())
        return storages_(parts[2].toStringRef(), type->dtype, parts[4].toInt());
    }
    fail("expected the five parts of a storage, found something else");
  }

  void reduce() {
    const c10::IValue arguments = pop();
    const c10::IValue callable = pop();
    const Global* const called = as_global(callable);
    if (called == nullptr || !arguments.isTuple()) fail("expected a call, found something else");
    const at::ArrayRef<c10::IValue> values = arguments.toTupleRef().elements().asArrayRef();
    switch (called->kind) {
      case Global::Kind::ordered_dict:
        if (values.empty()) return push(empty_dict());
        break;
      case Global::Kind::size:
        if (values.size() == 1 && values[0].isTuple()) {
          sizes(values[0]);
          return push(values[0]);
        }
        break;
      case Global::Kind::rebuild_tensor:
        if (values.size() >= 6 && values[0].isTensor() && values[1].isInt())
          return push(with_metadata(
              view(values[0].toTensor(), values[1].toInt(), sizes(values[2]), sizes(values[3])),
              values.size() > 6 ? values[6] : c10::IValue()));
        break;
      case Global::Kind::rebuild_tensor_of_dtype:
        if (values.size() >= 7 && values[0].isTensor() && values[1].isInt())
          return push(with_metadata(view(as_dtype(values[0].toTensor(), as_global(values[6])),
                                         values[1].toInt(), sizes(values[2]), sizes(values[3])),
                                    values.size() > 7 ? values[7] : c10::IValue()));
        break;
      case Global::Kind::rebuild_parameter:
        if (!values.empty() && values[0].isTensor()) return push(values[0]);
        break;
      case Global::Kind::storage:
      case Global::Kind::dtype:
        break;
    }
    fail("expected other arguments of '", called->name, "'");
  }

  std::vector<std::int64_t> sizes(const c10::IValue& value) const {
    std::vector<std::int64_t> result;
    if (!value.isTuple()) fail("expected a tuple of sizes, found ", kind(value));
    for (const c10::IValue& part : value.toTupleRef().elements()) {
      if (!part.isInt() || part.toInt() < 0) fail("expected sizes, found something else");
      result.push_back(part.toInt());
    }
    return result;
  }

  /// The elements of an untyped storage.
  at::Tensor as_dtype(const at::Tensor& bytes, const Global* dtype) const {
    if (dtype == nullptr || dtype->kind != Global::Kind::dtype)
      fail("expected a dtype, found none");
    const auto width = static_cast<std::int64_t>(c10::elementSize(dtype->dtype));
    if (bytes.scalar_type() != at::kByte || bytes.numel() % width != 0)
      fail("expected an untyped storage of ", dtype->name, ", found ", bytes.numel(), ' ',
           bytes.scalar_type());
    return bytes.view(dtype->dtype);
  }

  /// Python saves a lazy conjugate or negative as the tensor without it, and says so.
  at::Tensor with_metadata(at::Tensor tensor, const c10::IValue& metadata) const {
    if (metadata.isNone()) return tensor;
    if (!metadata.isGenericDict()) fail("expected a dict of metadata, found ", kind(metadata));
    const auto entries = metadata.toGenericDict();
    for (const auto& entry : entries) {
      const std::string key = entry.key().isString() ? entry.key().toStringRef() : "";
      if ((key != "conj" && key != "neg") || !entry.value().isBool())
        fail("found metadata '", key, "' of a tensor, which is not supported: save a clone of it");
      if (entry.value().toBool())
        tensor = key == "conj" ? at::conj_physical(tensor) : at::neg(tensor);
    }
    return tensor;
  }

  at::Tensor view(const at::Tensor& storage, std::int64_t offset,
                  const std::vector<std::int64_t>& size,
                  const std::vector<std::int64_t>& stride) const {
    bool fits = storage.dim() == 1 && storage.is_contiguous() && storage.storage_offset() == 0 &&
                size.size() == stride.size() && offset >= 0;
    std::int64_t end = offset;
    std::int64_t count = 1;
    for (std::size_t i = 0; fits && i < size.size(); ++i) {
      std::int64_t extent = 0;
      fits = !__builtin_mul_overflow(std::max<std::int64_t>(size[i] - 1, 0), stride[i], &extent) &&
             !__builtin_add_overflow(end, extent, &end) &&
             !__builtin_mul_overflow(count, std::max<std::int64_t>(size[i], 1), &count);
    }
    const bool empty = std::find(size.begin(), size.end(), 0) != size.end();
    if (!fits || (!empty && end >= storage.numel()))
      fail("expected a tensor within its storage of ", storage.numel(), " elements, found offset ",
           offset, ", sizes ", at::IntArrayRef(size), ", strides ", at::IntArrayRef(stride));
    return empty ? at::empty(size, storage.options())
                 : at::as_strided(storage, size, stride, offset);
  }

  std::string_view bytes_;
  const StorageSource& storages_;
  std::size_t next_ = 0;
  std::vector<c10::IValue> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, c10::IValue> memo_;
  std::unordered_map<const void*, Container> containers_;
};

}  // namespace

c10::IValue unpickle(std::string_view bytes, const StorageSource& storages) {
  return Unpickler(bytes, storages).run();
}

}  // namespace lockstep::detail
