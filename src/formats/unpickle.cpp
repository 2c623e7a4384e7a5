#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/neg.h>
#include <endian.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/text.h"
#include "formats/pickle.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

namespace {

/// What a pickle refers to by name: a class of storages, a callable, or an object that cannot be
/// held.
struct Global : torch::CustomClassHolder {
  enum class Kind {
    storage,
    dict,
    counter,
    size,
    device,
    rebuild_tensor,
    rebuild_tensor_of_dtype,
    rebuild_parameter,
    other
  };
  Global(std::string text, Kind of, at::ScalarType element = at::kByte)
      : what(std::move(text)), kind(of), dtype(element) {}

  std::string what;  ///< "the global 'torch.Size'"
  Kind kind;
  at::ScalarType dtype;
};

/// Whether the name is that of a dtype, such as "torch.float32".
bool is_dtype(const std::string& name) {
  constexpr std::string_view module = "torch.";
  return name.starts_with(module) &&
         c10::getStringToDtypeMap().contains(name.substr(module.size()));
}

/// Longer names are cut: a pickle may repeat one any number of times.
constexpr std::size_t most_text = 256;

class Unpickler {
 public:
  Unpickler(std::string_view bytes, const StorageSource& storages, SkippedValues& skipped)
      : bytes_(bytes), storages_(storages), skipped_(skipped) {}

  c10::IValue run() {
    for (;;) {
      const auto opcode = static_cast<Opcode>(take(1)[0]);
      if (opcode == Opcode::stop) return without_others(pop());
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
    bool searched = false;  ///< by other_in()
    std::string other{};    ///< what it has that cannot be held, and cannot be removed from it
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
      case Opcode::new_object:
        pop();
        if (!is_other(top())) fail("expected the class of an object, found ", kind(top()));
        return;
      case Opcode::build:
        // The state that torch.save adds to a state dict has the versions of modules. Ignores it.
        pop();
        if (!top().isGenericDict() && !is_other(top()))
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

  c10::IValue long_number() {
    const std::string_view digits = take(number<std::uint8_t>());
    if (digits.empty()) return std::int64_t{0};
    if (digits.size() > sizeof(std::int64_t))
      return new_global(concat("an integer of ", digits.size(), " bytes"), Global::Kind::other);
    std::int64_t value = static_cast<signed char>(digits.back()) < 0 ? -1 : 0;
    std::memcpy(&value, digits.data(), digits.size());
    return value;
  }

  double real() { return std::bit_cast<double>(be64toh(number<std::uint64_t>())); }

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
    return global != nullptr ? global->what : value.tagKind();
  }

  static const Global* as_global(const c10::IValue& value) {
    return value.isCapsule() ? dynamic_cast<const Global*>(value.toCapsule().get()) : nullptr;
  }

  static bool is_other(const c10::IValue& value) {
    const Global* const global = as_global(value);
    return global != nullptr && global->kind == Global::Kind::other;
  }

  static c10::IValue new_global(std::string what, Global::Kind kind,
                                at::ScalarType dtype = at::kByte) {
    what.resize(std::min(what.size(), most_text));
    return c10::IValue::make_capsule(c10::make_intrusive<Global>(std::move(what), kind, dtype));
  }

  c10::IValue new_container(c10::IValue container) {
    containers_[container.internalToPointer()] = {};
    return container;
  }

  c10::IValue empty_dict() {
    return new_container(c10::impl::GenericDict(c10::AnyType::get(), c10::AnyType::get()));
  }

  /// Removes from dicts the entries that have what cannot be held.
  c10::IValue without_others(c10::IValue value) {
    if (!value.isCapsule() && !is_container(value)) return value;
    if (const std::string other = other_in(value, ""); !other.empty())
      fail("found ", other,
           ": only tensors, dicts, lists, tuples, numbers and strings are supported; save "
           "state_dict(), not the object");
    return value;
  }

  /// What a container or global has that cannot be held; empty if there is nothing, or only in
  /// dicts, of which it is removed. name: of the value, for skipped_.
  std::string other_in(const c10::IValue& value, const std::string& name) {
    if (value.isCapsule()) return kind(value);
    Container& container = containers_.at(value.internalToPointer());
    if (std::exchange(container.searched, true)) return container.other;
    const auto name_of = [&](const auto& part) {
      return concat(name, name.empty() ? "" : ".", part).substr(0, most_text);
    };
    const auto may_have = [](const c10::IValue& part) {
      return part.isCapsule() || is_container(part);
    };
    const auto search = [&](const at::ArrayRef<c10::IValue> parts) {
      for (std::size_t i = 0; i < parts.size() && container.other.empty(); ++i)
        if (may_have(parts[i])) container.other = other_in(parts[i], name_of(i));
    };
    if (value.isList()) search(value.toListRef());
    if (value.isTuple()) search(value.toTupleRef().elements().asArrayRef());
    if (value.isGenericDict()) {
      auto dict = value.toGenericDict();
      std::vector<c10::IValue> keys;
      for (const auto& item : dict) {
        if (!may_have(item.value())) continue;
        const std::string entry =
            item.key().isString() ? name_of(item.key().toStringRef()) : name_of(item.key().toInt());
        std::string other = other_in(item.value(), entry);
        if (other.empty()) continue;
        keys.push_back(item.key());
        skipped_.emplace(entry, std::move(other));
      }
      for (const c10::IValue& key : keys) static_cast<void>(dict.erase(key));
    }
    return container.other;
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
    for (const c10::IValue& value : values) add_part(container, value);
    c10::IValue result = c10::ivalue::Tuple::create(std::move(values));
    containers_[result.internalToPointer()] = container;
    return result;
  }

  /// The list or dict on top, to which the value is added; null if it is already part of another
  /// value.
  Container* extended_by(const c10::IValue& value, bool wanted) {
    Container extended;
    add_part(extended, value);
    if (!wanted) fail("expected a list or dict to add to, found ", kind(top()));
    Container& container = containers_.at(top().internalToPointer());
    if (container.sealed) {
      container.other = "an addition to a list or dict that is already part of another value";
      return nullptr;
    }
    container.depth = std::max(container.depth, extended.depth);
    return &container;
  }

  void append(const std::vector<c10::IValue>& values) {
    if (is_other(top())) return;
    for (const c10::IValue& value : values) {
      if (extended_by(value, top().isList()) == nullptr) return;
      top().toList().push_back(value);
    }
  }

  void set(const std::vector<c10::IValue>& values) {
    if (values.size() % 2 != 0) fail("expected pairs of key and value, found an odd number");
    if (is_other(top())) return;
    for (std::size_t i = 0; i < values.size(); i += 2) {
      Container* const container = extended_by(values[i + 1], top().isGenericDict());
      if (container == nullptr) return;
      if (!values[i].isString() && !values[i].isInt()) {
        container->other = concat("a key that is ", kind(values[i]));
        continue;
      }
      top().toGenericDict().insert_or_assign(values[i], values[i + 1]);
    }
  }

  c10::IValue global() {
    const std::string module(line());
    const std::string name = concat(module, '.', line());
    const auto make = [&](Global::Kind kind, at::ScalarType dtype = at::kByte) {
      return new_global(concat("the global '", name, '\''), kind, dtype);
    };
    if (name == "collections.OrderedDict" || name == "collections.defaultdict")
      return make(Global::Kind::dict);
    if (name == "collections.Counter") return make(Global::Kind::counter);
    if (name == "torch.Size") return make(Global::Kind::size);
    if (name == "torch.device") return make(Global::Kind::device);
    if (name == "torch._utils._rebuild_tensor_v2") return make(Global::Kind::rebuild_tensor);
    if (name == "torch._utils._rebuild_tensor_v3")
      return make(Global::Kind::rebuild_tensor_of_dtype);
    if (name == "torch._utils._rebuild_parameter") return make(Global::Kind::rebuild_parameter);
    for (const StorageName& known : storage_names)
      if (known.name == name) return make(Global::Kind::storage, known.dtype);
    if (name == concat(untyped_storage_module, '.', untyped_storage_name))
      return make(Global::Kind::storage);
    if (is_dtype(name)) return name;
    return make(Global::Kind::other);
  }

  c10::IValue storage(const c10::IValue& id) {
    // ("storage", class, key, location, elements)
    if (id.isTuple()) {
      const at::ArrayRef<c10::IValue> parts = id.toTupleRef().elements().asArrayRef();
      const Global* const type = parts.size() == 5 ? as_global(parts[1]) : nullptr;
      if (type != nullptr && type->kind == Global::Kind::storage && parts[0].isString() &&
          parts[0].toStringRef() == "storage" && parts[2].isString() && parts[4].isInt())
        return storages_(parts[2].toStringRef(), type->dtype, parts[4].toInt());
      if (parts.size() == 5 && is_other(parts[1])) return parts[1];
    }
    fail("expected the five parts of a storage, found something else");
  }

  void reduce() {
    const c10::IValue arguments = pop();
    const c10::IValue callable = pop();
    const Global* const called = as_global(callable);
    if (called == nullptr || !arguments.isTuple()) fail("expected a call, found something else");
    const at::ArrayRef<c10::IValue> values = arguments.toTupleRef().elements().asArrayRef();
    if (!values.empty() && is_other(values[0]) && called->kind != Global::Kind::dict)
      return push(is_other(callable) ? callable : values[0]);
    switch (called->kind) {
      case Global::Kind::dict:
        // The argument of defaultdict makes values. The entries have theirs already.
        if (values.empty() || values[0].isCapsule()) return push(empty_dict());
        break;
      case Global::Kind::counter:
        if (values.empty()) return push(empty_dict());
        if (values.size() == 1 && values[0].isGenericDict()) return push(values[0]);
        break;
      case Global::Kind::device:
        if (values.size() == 1 && values[0].isString()) return push(values[0]);
        if (values.size() == 2 && values[0].isString() && values[1].isInt())
          return push(concat(values[0].toStringRef(), ':', values[1].toInt()));
        break;
      case Global::Kind::size:
        if (values.size() == 1 && values[0].isTuple()) {
          sizes(values[0]);
          return push(values[0]);
        }
        break;
      case Global::Kind::rebuild_tensor:
        if (values.size() >= 6 && values[0].isTensor() && values[1].isInt())
          return push(view(
              with_metadata(values[0].toTensor(), values.size() > 6 ? values[6] : c10::IValue()),
              values[1].toInt(), sizes(values[2]), sizes(values[3])));
        break;
      case Global::Kind::rebuild_tensor_of_dtype:
        if (values.size() >= 7 && values[0].isTensor() && values[1].isInt())
          return push(view(with_metadata(as_dtype(values[0].toTensor(), values[6]),
                                         values.size() > 7 ? values[7] : c10::IValue()),
                           values[1].toInt(), sizes(values[2]), sizes(values[3])));
        break;
      case Global::Kind::rebuild_parameter:
        if (!values.empty() && values[0].isTensor()) return push(values[0]);
        break;
      case Global::Kind::storage:
        break;
      case Global::Kind::other:
        return push(callable);
    }
    fail("expected other arguments of ", called->what);
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
  at::Tensor as_dtype(const at::Tensor& bytes, const c10::IValue& name) const {
    const auto* const known = std::ranges::find_if(untyped_dtype_names, [&](const auto& each) {
      return name.isString() && name.toStringRef() == each.name;
    });
    if (known == std::end(untyped_dtype_names))
      fail("expected the dtype of an untyped storage, found ",
           name.isString() ? name.toStringRef() : kind(name));
    const auto width = static_cast<std::int64_t>(c10::elementSize(known->dtype));
    if (bytes.scalar_type() != at::kByte || bytes.numel() % width != 0)
      fail("expected an untyped storage of ", known->name, ", found ", bytes.numel(), ' ',
           bytes.scalar_type());
    return bytes.view(known->dtype);
  }

  /// Python saves a lazy conjugate or negative as the tensor without it, and says so. The storage
  /// is converted, once: the tensor may repeat its elements any number of times.
  at::Tensor with_metadata(const at::Tensor& storage, const c10::IValue& metadata) {
    if (metadata.isNone()) return storage;
    if (!metadata.isGenericDict()) fail("expected a dict of metadata, found ", kind(metadata));
    bool conj = false, neg = false;
    const auto entries = metadata.toGenericDict();
    for (const auto& entry : entries) {
      const std::string key = entry.key().isString() ? entry.key().toStringRef() : "";
      if ((key != "conj" && key != "neg") || !entry.value().isBool())
        fail("found metadata '", key, "' of a tensor, which is not supported: save a clone of it");
      (key == "conj" ? conj : neg) = entry.value().toBool();
    }
    if (!conj && !neg) return storage;
    auto& [from, to] = converted_[{storage.const_data_ptr(), storage.scalar_type(), conj, neg}];
    if (!to.defined()) {
      from = storage;  // keeps its address in use
      to = conj ? at::conj_physical(storage) : storage;
      if (neg) to = at::neg(to);
    }
    return to;
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
    const bool empty = std::ranges::find(size, 0) != size.end();
    if (!fits || (!empty && end >= storage.numel()))
      fail("expected a tensor within its storage of ", storage.numel(), " elements, found offset ",
           offset, ", sizes ", at::IntArrayRef(size), ", strides ", at::IntArrayRef(stride));
    return empty ? at::empty(size, storage.options())
                 : at::as_strided(storage, size, stride, offset);
  }

  std::string_view bytes_;
  const StorageSource& storages_;
  SkippedValues& skipped_;
  std::size_t next_ = 0;
  std::vector<c10::IValue> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, c10::IValue> memo_;
  std::unordered_map<const void*, Container> containers_;
  /// Conjugates and negatives of storages, by address, dtype, and what they are.
  std::map<std::tuple<const void*, at::ScalarType, bool, bool>, std::pair<at::Tensor, at::Tensor>>
      converted_;
};

}  // namespace

c10::IValue unpickle(std::string_view bytes, const StorageSource& storages,
                     SkippedValues& skipped) {
  return Unpickler(bytes, storages, skipped).run();
}

}  // namespace lockstep::detail
