#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// Deeper values than any state dict would fill the stack.
inline constexpr int deepest_value = 64;

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
    {"torch.BoolStorage", c10::ScalarType::Bool}};

/// The part of Python's pickle that torch.save needs for tensors, dicts, lists, tuples, numbers and
/// texts. It makes nothing else, and calls nothing.
/// Source: https://docs.python.org/3/library/pickletools.html (protocol 2)

/// The elements of a storage, by its key, in memory that begins with them.
/// Shapes: [count].
using StorageSource =
    std::function<at::Tensor(const std::string& key, at::ScalarType dtype, std::int64_t count)>;

/// Dicts become GenericDict, lists GenericList.
/// Throws: CheckpointError saying what was found where, for anything else than the above.
c10::IValue unpickle(std::string_view bytes, const StorageSource& storages);

/// The opposite; storages gets what the file must hold under the keys "0", "1", …, contiguous, each
/// once even when several tensors share it.
/// Throws: CheckpointError for a value that it has no form for.
std::string pickle(const c10::IValue& value, std::vector<at::Tensor>& storages);

}  // namespace lockstep::detail
