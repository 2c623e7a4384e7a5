#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// Most levels of nested values. Deeper ones could overflow the stack; state dicts have fewer.
inline constexpr int max_depth = 64;

enum class Opcode : unsigned char {
  protocol = 0x80,
  stop = '.',
  mark = '(',
  put = 'q',
  long_put = 'r',
  get = 'h',
  long_get = 'j',
  none = 'N',
  true_ = 0x88,
  false_ = 0x89,
  int1 = 'K',
  int2 = 'M',
  int4 = 'J',
  long1 = 0x8a,
  real = 'G',
  text = 'X',
  empty_tuple = ')',
  tuple = 't',
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  empty_list = ']',
  append = 'a',
  appends = 'e',
  empty_dict = '}',
  set_item = 's',
  set_items = 'u',
  global = 'c',
  persistent = 'Q',
  reduce = 'R',
  new_object = 0x81,
  build = 'b'
};

struct StorageName {
  std::string_view name;
  c10::ScalarType dtype;
};

inline constexpr StorageName storage_names[] = {
    {"torch.DoubleStorage", c10::ScalarType::Double},
    {"torch.FloatStorage", c10::ScalarType::Float},
    {"torch.HalfStorage", c10::ScalarType::Half},
    {"torch.BFloat16Storage", c10::ScalarType::BFloat16},
    {"torch.LongStorage", c10::ScalarType::Long},
    {"torch.IntStorage", c10::ScalarType::Int},
    {"torch.ShortStorage", c10::ScalarType::Short},
    {"torch.CharStorage", c10::ScalarType::Char},
    {"torch.ByteStorage", c10::ScalarType::Byte},
    {"torch.BoolStorage", c10::ScalarType::Bool},
    {"torch.ComplexFloatStorage", c10::ScalarType::ComplexFloat},
    {"torch.ComplexDoubleStorage", c10::ScalarType::ComplexDouble}};

/// The class of storages of bytes, for dtypes without a class of their own.
inline constexpr std::string_view untyped_storage_module = "torch.storage";
inline constexpr std::string_view untyped_storage_name = "UntypedStorage";

/// The dtypes that torch.save writes with untyped storages.
inline constexpr StorageName untyped_dtype_names[] = {
    {"torch.uint16", c10::ScalarType::UInt16},
    {"torch.uint32", c10::ScalarType::UInt32},
    {"torch.uint64", c10::ScalarType::UInt64},
    {"torch.complex32", c10::ScalarType::ComplexHalf},
    {"torch.float8_e4m3fn", c10::ScalarType::Float8_e4m3fn},
    {"torch.float8_e5m2", c10::ScalarType::Float8_e5m2},
    {"torch.float8_e4m3fnuz", c10::ScalarType::Float8_e4m3fnuz},
    {"torch.float8_e5m2fnuz", c10::ScalarType::Float8_e5m2fnuz},
    {"torch.float8_e8m0fnu", c10::ScalarType::Float8_e8m0fnu}};

// Note [Pickles]
// The part of Python's pickle format that torch.save needs for tensors, dicts, lists, tuples,
// numbers, strings, devices and dtypes. unpickle() constructs no other objects and calls no
// functions of the file. Source: https://docs.python.org/3/library/pickletools.html (protocol 2)

/// Returns the elements of the storage with a key, at the beginning of their memory.
/// Shapes: [count].
using StorageSource =
    std::function<at::Tensor(const std::string& key, at::ScalarType dtype, std::int64_t count)>;

/// The names of values that a pickle has and unpickle() cannot hold, and what they are. A name is
/// that of the keys and positions that lead to the value: "scheduler.milestones.0".
using SkippedValues = std::map<std::string, std::string>;

/// Parses a pickle. Dicts, also those of collections, become GenericDict, lists GenericList, and
/// devices and dtypes their texts. A dict's entry of any other object, and of a list or tuple that
/// has one, is left out and added to skipped.
/// Throws: CheckpointError, with offset and what was found, if there is no such entry.
c10::IValue unpickle(std::string_view bytes, const StorageSource& storages, SkippedValues& skipped);

/// Writes a pickle. Appends to storages the contiguous tensors that the file must have under the
/// keys "0", "1", … A storage that several tensors share is appended once.
/// Throws: CheckpointError for a value of an unsupported type.
std::string pickle(const c10::IValue& value, std::vector<at::Tensor>& storages);

}  // namespace lockstep::detail
