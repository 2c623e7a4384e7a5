// Resources that strategies use at every step, once the first steps have allocated buffers.
#include <sys/resource.h>

#include <cerrno>
#include <iterator>
#include <limits>
#include <sstream>

#include "parallel/buckets/bucket_reducers.h"
#include "tests/parallel/models.h"
#include "tests/sync/on_hosts.h"

namespace {

// Set at load time, as malloc is called before any constructor.
thread_local std::size_t least_counted = std::numeric_limits<std::size_t>::max();
thread_local std::size_t requests_counted = 0;

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

constexpr bool counts_requests = false;  // a sanitizer has an allocator of its own

#else

constexpr bool counts_requests = true;

static void count_request(std::size_t bytes) {
  if (bytes >= least_counted) ++requests_counted;
}

// The program's own functions come before the C library's for every library in it. That one's are
// still there under these names.
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) noexcept {
  count_request(bytes);
  return __libc_malloc(bytes);
}

void* calloc(std::size_t count, std::size_t bytes) noexcept {
  count_request(count * bytes);
  return __libc_calloc(count, bytes);
}

void* realloc(void* memory, std::size_t bytes) noexcept {
  count_request(bytes);
  return __libc_realloc(memory, bytes);
}

void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  count_request(bytes);
  return __libc_memalign(alignment, bytes);
}

int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  count_request(bytes);
  void* got = __libc_memalign(alignment, bytes);
  if (got == nullptr) return ENOMEM;
  *memory = got;
  return 0;
}
}

#endif

namespace lockstep::testing {
namespace {

/// Counts what the calling thread asks the allocator for, while it lives: requests of at least so
/// many bytes, of whichever library. One at a time a thread.
class LargeRequests {
 public:
  explicit LargeRequests(std::size_t least_bytes) {
    requests_counted = 0;
    least_counted = least_bytes;
  }
  ~LargeRequests() { least_counted = std::numeric_limits<std::size_t>::max(); }
  LargeRequests(const LargeRequests&) = delete;
  LargeRequests& operator=(const LargeRequests&) = delete;

  std::size_t count() const { return requests_counted; }
};

/// A matrix and a vector, 4 MB in two buckets.
constexpr std::int64_t matrix_rows = 1000;
constexpr std::int64_t matrix_columns = 900;
constexpr std::int64_t vector_length = 100'000;
constexpr std::size_t page_bytes = 4096;
constexpr std::size_t bucket_bytes = matrix_rows * matrix_columns * sizeof(float);

struct StepsCost {
  std::size_t large_requests;  ///< of a percent of the larger bucket, or more
  long faults;
  int of_group_memory;  ///< requests of any size
};

long faults_of_this_thread() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

/// The cost of some steps, after as many steps of warm-up.
StepsCost cost_of(const Strategy& strategy, const Group& group, int steps, const OnHosts& memory) {
  const at::NoGradGuard no_grad;
  const std::vector<lockstep::NamedTensor> parameters{
      {"matrix", at::zeros({matrix_rows, matrix_columns})}, {"vector", at::zeros({vector_length})}};
  lockstep::detail::BucketReducers reducers(
      parameters, group, {.first = 0, .rest = 0},
      lockstep::detail::ParameterStrategies({.strategy = strategy}));
  std::vector<at::Tensor> gradients;
  for (std::size_t bucket = 0; bucket < reducers.size(); ++bucket) {
    gradients.push_back(random(reducers[bucket].bucket.values().sizes(),
                               static_cast<std::uint64_t>(group.rank()) * 10 + bucket));
  }
  const auto step = [&](std::int64_t number) {
    lockstep::detail::ExchangeRound round(reducers, SyncTarget::gradients, number);
    for (std::size_t bucket = 0; bucket < reducers.size(); ++bucket) {
      reducers[bucket].bucket.values().copy_(gradients[bucket]);
      round.wait_to_begin();
      round.begin_next();
    }
    EXPECT_EQ(round.complete(), nullptr);
    for (const auto& parameter : parameters) parameter.tensor.add_(1 + group.rank());
    reducers.exchange_parameters(number);
  };
  for (int i = 0; i < steps; ++i) step(i);
  group.barrier().wait();
  const int taken = memory.allocations();
  const long before = faults_of_this_thread();
  const LargeRequests large(bucket_bytes / 100);
  for (int i = steps; i < 2 * steps; ++i) step(i);
  return {.large_requests = large.count(),
          .faults = faults_of_this_thread() - before,
          .of_group_memory = memory.allocations() - taken};
}

std::vector<std::string> strategies() {
  std::istringstream texts(
      "fp32 fp16 fp16:clip=1 bf16 topk:0.01 topk:0.01,feedback=off threshold:2.5 "
      "threshold:2.5,feedback=off threshold:0 int8 int8:feedback=off power_sgd:rank=4 "
      "power_sgd:rank=4,feedback=off partial_update partial_update:of=gradients "
      "local_sgd:period=2 post_local_sgd:start=1,period=2 adasum warmup:1:topk:0.01");
  return {std::istream_iterator<std::string>(texts), {}};
}

class SteadyState : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!counts_requests) GTEST_SKIP() << "a sanitizer has an allocator of its own";
  }
};

TEST_F(SteadyState, TakesNoMemoryThatGrowsWithTheBucket) {
  for (const auto& text : strategies()) {
    on_ranks(2, [&](const Group& world) {
      const auto without_shared_memory = std::make_shared<OnHosts>(
          world.communicator(), std::vector<int>(static_cast<std::size_t>(world.size())));
      for (const auto& group : {world, Group(without_shared_memory)}) {
        constexpr int steps = 4;
        const auto cost = cost_of(parse_strategy(text), group, steps, *without_shared_memory);
        EXPECT_EQ(cost.large_requests, 0U) << text;
        EXPECT_EQ(cost.of_group_memory, 0) << text;
        // One bucket's worth a step would be 879 each.
        EXPECT_LT(cost.faults, static_cast<long>(bucket_bytes / page_bytes / 16)) << text;
      }
      EXPECT_GT(without_shared_memory->allocations(), 0) << "of the buckets";
    });
  }
}

/// Large allocations of some whole training steps, after as many steps of warm-up.
std::size_t requests_of(int steps, const std::function<void()>& step) {
  for (int i = 0; i < steps; ++i) step();
  const LargeRequests large(bucket_bytes / 100);
  for (int i = 0; i < steps; ++i) step();
  return large.count();
}

TEST_F(SteadyState, WholeStepsTakeNoMoreThanWithoutLockstep) {
  constexpr int steps = 4;
  on_ranks(2, [](const Group& group) {
    const auto inputs = random({4, matrix_columns}, static_cast<std::uint64_t>(group.rank()));
    const auto requests = [&](const std::string& strategy) {
      torch::nn::Linear model(matrix_columns, matrix_rows);
      torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(1e-3).momentum(0.9));
      const auto loss = [&] { return model->forward(inputs).square().mean(); };
      if (strategy.empty()) {
        return requests_of(steps, [&] {
          loss().backward();
          sgd.step();
          sgd.zero_grad();
        });
      }
      DistributedOptimizer optimizer(
          sgd, *model, group,
          {.buckets = {.first = 0, .rest = 0}, .strategy = parse_strategy(strategy)});
      return requests_of(steps, [&] { optimizer.backward_and_update(loss()); });
    };
    const auto without = requests("");
    EXPECT_GE(without, std::size_t{steps});  // the gradient
    for (const auto& text : strategies()) EXPECT_LE(requests(text), without) << text;
  });
}

}  // namespace
}  // namespace lockstep::testing
