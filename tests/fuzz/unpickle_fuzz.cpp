#include <ATen/ops/zeros.h>

#include <map>
#include <vector>

#include "formats/pickle.h"
#include "lockstep/error.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/values.h"

namespace lockstep::inline v0_2::detail {
namespace {

using fuzzing::require;

/// Storages of any key with at most as many bytes, each of one dtype and size, as in a file.
class Storages {
 public:
  at::Tensor find(const std::string& key, at::ScalarType dtype, std::int64_t count) {
    constexpr std::int64_t most = 64;
    if (count < 0 || count > most) throw CheckpointError("no such storage in data.pkl");
    const auto place = found_.find(key);
    if (place == found_.end()) return found_.emplace(key, at::zeros({count}, dtype)).first->second;
    if (place->second.scalar_type() != dtype || place->second.numel() != count)
      throw CheckpointError("no such storage in data.pkl");
    return place->second;
  }

 private:
  std::map<std::string, at::Tensor> found_;
};

int depth_of(const c10::IValue& value) {
  int deepest = 0;
  for (const c10::IValue& part : fuzzing::parts_of(value)) {
    deepest = std::max(deepest, depth_of(part));
  }
  return value.isList() || value.isTuple() || value.isGenericDict() ? deepest + 1 : 0;
}

}  // namespace
}  // namespace lockstep::detail

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::detail;
  namespace fuzzing = lockstep::fuzzing;
  const fuzzing::MemoryLimit memory(4096 * size + (4 << 20));
  Storages storages;
  SkippedValues skipped;
  const auto value = fuzzing::accepted<lockstep::CheckpointError>("data.pkl", [&] {
    return unpickle(
        fuzzing::text_of({data, size}),
        [&](const std::string& key, at::ScalarType dtype, std::int64_t count) {
          return storages.find(key, dtype, count);
        },
        skipped);
  });
  if (!value || fuzzing::is_large(*value)) return 0;
  require(fuzzing::within_storage(*value), "every tensor lies within its storage");
  require(depth_of(*value) <= max_depth, "a value is at most as deep as is documented");

  std::vector<at::Tensor> written;
  const std::string bytes = pickle(*value, written);
  skipped.clear();
  const c10::IValue again = unpickle(
      bytes,
      [&](const std::string& key, at::ScalarType dtype, std::int64_t count) {
        const at::Tensor storage = written.at(std::stoul(key)).flatten().clone();
        require(storage.scalar_type() == dtype && storage.numel() == count,
                "a pickle describes its storages");
        return storage;
      },
      skipped);
  require(skipped.empty(), "what is written is read without exception");
  require(fuzzing::equal(again, *value), "the value pickled and unpickled again is equal");
  return 0;
}
