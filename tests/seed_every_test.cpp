// Seeds LibTorch's default generator before each test. Without it, a test's numbers would depend on
// how many numbers the tests before it drew, and rank threads draw in another order in each run.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

namespace {

class SeedEveryTest : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(0);
  }
};

// The list of listeners owns it.
[[maybe_unused]] const bool registered = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new SeedEveryTest);
  return true;
}();

}  // namespace
