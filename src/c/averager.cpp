#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "averaging/average.h"
#include "averaging/parse.h"
#include "c/handles.h"
#include "comm/agreement.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace {

namespace averaging = lockstep::averaging;
using lockstep::Communicator;
using lockstep::DType;
using lockstep::InvalidArgument;
using lockstep::Work;
using lockstep::c::expect_pointer;
using lockstep::c::status_of;
using lockstep::detail::concat;

constexpr auto create_name = "lockstep_averager_create";

averaging::Options options_of(const char* text) {
  const std::string_view strategy = text == nullptr ? "fp32" : text;
  if (auto parsed = averaging::parse(strategy)) return *parsed;
  throw InvalidArgument(concat(create_name, ": got the strategy '", strategy,
                               "', expected one of: ", averaging::names(),
                               "; the other strategies of Lockstep need LibTorch"));
}

/// Arrays that are exchanged together, one behind the other.
struct Bucket {
  std::size_t first = 0;  ///< index of the first array
  std::size_t end = 0;    ///< index behind the last one
  std::size_t count = 0;  ///< elements
  std::shared_ptr<std::byte> memory = {};
  std::unique_ptr<averaging::Average> average = {};
};

}  // namespace

struct lockstep_averager {
  std::shared_ptr<Communicator> group;
  DType dtype;
  std::string strategy;
  std::vector<std::size_t> counts;
  std::vector<Bucket> buckets;
  bool is_agreed = false;  ///< all ranks have these arrays and this strategy
  std::int64_t steps = 0;  ///< averages so far
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

averaging::Elements elements_of(const lockstep_averager& averager, const Bucket& bucket) {
  return {.data = bucket.memory.get(),
          .count = bucket.count,
          .dtype = averager.dtype,
          .owner = bucket.memory};
}

/// The arrays of a bucket. The averager outlives the result.
averaging::Arrays arrays_of(const lockstep_averager& averager, const Bucket& bucket) {
  return {.numel = bucket.count,
          .name_at = [&counts = averager.counts, first = bucket.first](std::size_t element) {
            auto array = first;
            for (auto end = counts[array]; element >= end && array + 1 < counts.size();) {
              end += counts[++array];
            }
            return concat("array ", array);
          }};
}

/// Calls fn(bucket, offset in the bucket in bytes, array index, bytes) for each array.
void for_each_array(const lockstep_averager& averager, const auto& fn) {
  for (const auto& bucket : averager.buckets) {
    std::size_t offset = 0;
    for (auto i = bucket.first; i < bucket.end; ++i) {
      const auto bytes = averager.counts[i] * size_of(averager.dtype);
      if (bytes > 0) fn(bucket, offset, i, bytes);
      offset += bytes;
    }
  }
}

void expect_arrays(const char* function, const lockstep_averager& averager,
                   const void* const* arrays) {
  if (!averager.counts.empty()) expect_pointer(function, "arrays", arrays);
  for (std::size_t i = 0; i < averager.counts.size(); ++i) {
    if (arrays[i] == nullptr && averager.counts[i] > 0) {
      throw InvalidArgument(concat(function, ": got NULL as array ", i, ", expected ",
                                   averager.counts[i], " elements"));
    }
  }
}

/// Checks that all ranks average the same arrays by the same strategy.
/// Ranks: all of the group.
/// Throws: InvalidArgument, on every rank.
void expect_agreement(const lockstep_averager& averager) {
  std::vector<std::string> lines{
      concat("strategy ", averager.strategy, " of ", name(averager.dtype))};
  for (std::size_t i = 0; i < averager.counts.size(); ++i) {
    lines.push_back(concat(averager.counts[i], " elements of array ", i));
  }
  const auto different = lockstep::detail::difference(*averager.group, lines);
  if (!different) return;
  throw InvalidArgument(
      concat("lockstep_average: got ", different->text, ", expected the same on all ranks; pass ",
             create_name, " the same counts, dtype and strategy"),
      {.rank = different->rank, .operation = "lockstep_average"});
}

/// Runs the exchanges of all buckets. All ranks issue the collectives of one stage in the order of
/// the buckets, and then those of the next stage.
/// Throws: InvalidArgument for elements that are not finite, on every rank, when all exchanges have
/// ended.
void exchange(lockstep_averager& averager) {
  std::vector<std::pair<lockstep::ExchangeTask, Work>> all;
  const auto step = averager.steps++;
  for (auto& bucket : averager.buckets) {
    all.emplace_back(bucket.average->exchange(step, elements_of(averager, bucket), *averager.group),
                     Work());
  }
  std::exception_ptr error;
  for (bool some = true; std::exchange(some, false);) {
    for (auto& [task, work] : all) {
      if (task.finished() && !work.pending()) continue;
      work.wait();
      some = true;
      try {
        work = task.advance();
      } catch (const InvalidArgument&) {
        if (!error) error = std::current_exception();
      }
    }
  }
  if (error) std::rethrow_exception(error);
}

void average(lockstep_averager& averager, void* const* arrays) {
  for_each_array(averager, [&](const Bucket& bucket, auto offset, auto i, auto bytes) {
    std::memcpy(bucket.memory.get() + offset, arrays[i], bytes);
  });
  exchange(averager);
  for_each_array(averager, [&](const Bucket& bucket, auto offset, auto i, auto bytes) {
    std::memcpy(arrays[i], bucket.memory.get() + offset, bytes);
  });
  averager.group->count_step();
}

}  // namespace

lockstep_status lockstep_averager_create(lockstep_group* group, const size_t* counts, size_t n,
                                         lockstep_dtype dtype, const char* strategy,
                                         lockstep_averager** averager) {
  return status_of([&] {
    expect_pointer(create_name, "averager", static_cast<const void*>(averager));
    *averager = nullptr;
    auto& communicator = lockstep::c::communicator_of(create_name, group);
    if (n > 0) expect_pointer(create_name, "counts", counts);
    const auto type = lockstep::c::dtype_of(create_name, dtype);
    if (type != DType::f32 && type != DType::f64) {
      throw InvalidArgument(concat(create_name, ": got ", name(type),
                                   " arrays, expected LOCKSTEP_FLOAT32 or LOCKSTEP_FLOAT64"));
    }
    const auto options = options_of(strategy);
    auto made = std::make_unique<lockstep_averager>();
    made->group = group->communicator;
    made->dtype = type;
    made->strategy = std::visit([](const auto& recipe) { return recipe.text(); }, options);
    made->counts.assign(counts, counts + n);
    made->buckets = buckets_of(made->counts, size_of(type));
    for (auto& bucket : made->buckets) {
      bucket.memory = communicator.allocate(bucket.count * size_of(type));
      bucket.average = std::visit(
          [&](const auto& recipe) {
            return averaging::create(
                recipe, {elements_of(*made, bucket), arrays_of(*made, bucket), communicator});
          },
          options);
    }
    *averager = made.release();
  });
}

lockstep_status lockstep_average(lockstep_averager* averager, void* const* arrays) {
  return status_of([&] {
    expect_pointer("lockstep_average", "averager", averager);
    expect_arrays("lockstep_average", *averager, arrays);
    if (!averager->is_agreed) expect_agreement(*averager);
    averager->is_agreed = true;
    average(*averager, arrays);
  });
}

lockstep_status lockstep_averager_save(const lockstep_averager* averager, void* const* residuals,
                                       int64_t* steps) {
  return status_of([&] {
    constexpr auto function = "lockstep_averager_save";
    expect_pointer(function, "averager", averager);
    expect_pointer(function, "steps", steps);
    expect_arrays(function, *averager, residuals);
    for_each_array(*averager, [&](const Bucket& bucket, auto offset, auto i, auto bytes) {
      const auto& residual = bucket.average->residual();
      if (residual.defined()) {
        std::memcpy(residuals[i], residual.data() + offset, bytes);
      } else {
        std::memset(residuals[i], 0, bytes);
      }
    });
    *steps = averager->steps;
  });
}

lockstep_status lockstep_averager_load(lockstep_averager* averager, void* const* residuals,
                                       int64_t steps) {
  return status_of([&] {
    constexpr auto function = "lockstep_averager_load";
    expect_pointer(function, "averager", averager);
    expect_arrays(function, *averager, residuals);
    if (steps < 0) {
      throw InvalidArgument(concat(function, ": got ", steps, " steps, expected 0 or more"));
    }
    for_each_array(*averager, [&](const Bucket& bucket, auto offset, auto i, auto bytes) {
      const auto& residual = bucket.average->residual();
      if (residual.defined()) std::memcpy(residual.data() + offset, residuals[i], bytes);
    });
    averager->steps = steps;
  });
}

void lockstep_averager_free(lockstep_averager* averager) { delete averager; }
