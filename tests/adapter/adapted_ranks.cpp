#include "tests/adapter/adapted_ranks.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <memory>
#include <thread>

#include "lockstep/group_from_backend.h"
#include "tests/adapter/memory_backend.h"

namespace lockstep::testing {

std::vector<std::string> what_adapted_ranks_threw(int n, const std::function<void(Group)>& fn,
                                                  const AdaptedOptions& options) {
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
        texts[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return texts;
}

void expect_adapted_ranks(int n, const std::function<void(Group)>& fn) {
  EXPECT_THAT(what_adapted_ranks_threw(n, fn), ::testing::Each(""));
}

}  // namespace lockstep::testing
