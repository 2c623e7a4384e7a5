#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "c/handles.h"
#include "c/status.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace {

using lockstep::Communicator;
using lockstep::DType;
using lockstep::InvalidArgument;
using lockstep::ReduceOp;
using lockstep::Wire;
using lockstep::Work;
using lockstep::c::expect_pointer;
using lockstep::c::status_of;
using lockstep::detail::concat;

constexpr auto create_name = "lockstep_averager_create";

/// The dtype in which float32 elements are sent; nullopt for their own.
std::optional<Wire> wire_of(const char* text, DType dtype) {
  const std::string_view wire = text == nullptr ? "fp32" : text;
  if (wire == "fp32") return std::nullopt;
  if (wire != "fp16" && wire != "bf16") {
    throw InvalidArgument(
        concat(create_name, ": got the wire '", wire, "', expected fp32, fp16 or bf16"));
  }
  if (dtype != DType::f32) {
    throw InvalidArgument(concat(create_name, ": got the wire ", wire, " for ", name(dtype),
                                 ", expected float32 arrays; other arrays are sent as fp32"));
  }
  return Wire{.dtype = wire == "fp16" ? DType::f16 : DType::bf16, .predivide = true};
}

/// Arrays that are exchanged together, one behind the other.
struct Bucket {
  std::size_t first = 0;  ///< index of the first array
  std::size_t end = 0;    ///< index behind the last one
  std::size_t count = 0;  ///< elements
  std::shared_ptr<std::byte> memory = {};
};

}  // namespace

struct lockstep_averager {
  std::shared_ptr<Communicator> group;
  DType dtype;
  std::optional<Wire> wire;
  std::vector<std::size_t> counts;
  std::vector<Bucket> buckets;
};

namespace {

constexpr std::size_t bucket_bytes = lockstep::BucketCaps{}.rest;

/// The buckets of arrays with these counts. An array larger than a bucket has one of its own.
std::vector<Bucket> buckets_of(const std::vector<std::size_t>& counts, std::size_t element_bytes) {
  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > std::numeric_limits<std::size_t>::max() / 2 / element_bytes) {
      throw InvalidArgument(concat(create_name, ": got ", counts[i], " elements of array ", i,
                                   ", more than memory holds"));
    }
    const bool fits =
        !buckets.empty() && (buckets.back().count + counts[i]) * element_bytes <= bucket_bytes;
    if (!fits) buckets.push_back({.first = i, .end = i});
    buckets.back().end = i + 1;
    buckets.back().count += counts[i];
  }
  return buckets;
}

/// Calls fn(array, place in the bucket, bytes) for each array of a bucket.
void for_each_array(const lockstep_averager& averager, const Bucket& bucket, void* const* arrays,
                    const auto& fn) {
  std::byte* place = bucket.memory.get();
  for (auto i = bucket.first; i < bucket.end; ++i) {
    const auto bytes = averager.counts[i] * size_of(averager.dtype);
    if (bytes > 0) fn(arrays[i], place, bytes);
    place += bytes;
  }
}

void average(const lockstep_averager& averager, void* const* arrays) {
  for (std::size_t i = 0; i < averager.counts.size(); ++i) {
    if (arrays[i] == nullptr && averager.counts[i] > 0) {
      throw InvalidArgument(concat("lockstep_average: got NULL as array ", i, ", expected ",
                                   averager.counts[i], " elements"));
    }
  }
  std::vector<Work> works;
  for (const auto& bucket : averager.buckets) {
    for_each_array(averager, bucket, arrays, [](const void* array, void* place, std::size_t bytes) {
      std::memcpy(place, array, bytes);
    });
    auto* const data = bucket.memory.get();
    works.push_back(
        averager.wire
            ? averager.group->all_reduce(data, bucket.count, ReduceOp::avg, *averager.wire)
            : averager.group->all_reduce(data, bucket.count, averager.dtype, ReduceOp::avg));
  }
  for (std::size_t i = 0; i < works.size(); ++i) {
    works[i].wait();
    for_each_array(averager, averager.buckets[i], arrays,
                   [](void* array, const void* place, std::size_t bytes) {
                     std::memcpy(array, place, bytes);
                   });
  }
  averager.group->count_step();
}

}  // namespace

lockstep_status lockstep_averager_create(lockstep_group* group, const size_t* counts, size_t n,
                                         lockstep_dtype dtype, const char* wire,
                                         lockstep_averager** averager) {
  return status_of([&] {
    auto& communicator = lockstep::c::communicator_of(create_name, group);
    if (n > 0) expect_pointer(create_name, "counts", counts);
    expect_pointer(create_name, "averager", static_cast<const void*>(averager));
    *averager = nullptr;
    const auto type = lockstep::c::dtype_of(create_name, dtype);
    if (type != DType::f32 && type != DType::f64) {
      throw InvalidArgument(concat(create_name, ": got ", name(type),
                                   " arrays, expected LOCKSTEP_FLOAT32 or LOCKSTEP_FLOAT64"));
    }
    auto made = std::make_unique<lockstep_averager>();
    made->group = group->communicator;
    made->dtype = type;
    made->wire = wire_of(wire, type);
    made->counts.assign(counts, counts + n);
    made->buckets = buckets_of(made->counts, size_of(type));
    for (auto& bucket : made->buckets) {
      bucket.memory = communicator.allocate(bucket.count * size_of(type));
    }
    *averager = made.release();
  });
}

lockstep_status lockstep_average(lockstep_averager* averager, void* const* arrays) {
  return status_of([&] {
    expect_pointer("lockstep_average", "averager", averager);
    if (!averager->counts.empty()) expect_pointer("lockstep_average", "arrays", arrays);
    average(*averager, arrays);
  });
}

void lockstep_averager_free(lockstep_averager* averager) { delete averager; }
