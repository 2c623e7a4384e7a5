#include "tests/adapter/adapted_ranks.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <memory>
#include <thread>

#include "lockstep/group_from_backend.h"
#include "tests/adapter/memory_backend.h"
#include "tests/error_fields.h"

namespace lockstep::testing {

namespace {

using TextOf = std::function<std::string(const std::exception&)>;

std::vector<std::string> errors_of_ranks(int n, const std::function<void(Group)>& fn,
                                         const AdaptedOptions& options, const TextOf& text) {
  const auto boxes = std::make_shared<Mailboxes>();
  std::vector<std::string> texts(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        GroupFromBackendOptions own{.store = options.store, .timeout = options.timeout};
        if (options.flush_denormals) own.flush_denormals = options.flush_denormals(rank);
        fn(group_from_backend(c10::make_intrusive<MemoryBackend>(boxes, rank, n), own));
      } catch (const std::exception& error) {
        texts[static_cast<std::size_t>(rank)] = text(error);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return texts;
}

}  // namespace

std::vector<std::string> what_adapted_ranks_threw(int n, const std::function<void(Group)>& fn,
                                                  const AdaptedOptions& options) {
  return errors_of_ranks(n, fn, options, [](const std::exception& error) { return error.what(); });
}

std::vector<std::string> fields_adapted_ranks_threw(int n, const std::function<void(Group)>& fn,
                                                    const AdaptedOptions& options) {
  return errors_of_ranks(n, fn, options, [](const std::exception& error) {
    return fields_of(dynamic_cast<const Error&>(error));
  });
}

void expect_adapted_ranks(int n, const std::function<void(Group)>& fn) {
  EXPECT_THAT(what_adapted_ranks_threw(n, fn), ::testing::Each(""));
}

}  // namespace lockstep::testing
