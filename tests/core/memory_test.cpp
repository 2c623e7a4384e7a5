#include "core/system/memory.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>

namespace lockstep {
namespace {

std::int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

/// Page faults of taking so many bytes, writing all of them, and giving them back.
std::int64_t faults_of_using(std::size_t bytes) {
  const auto before = page_faults();
  void* block = std::malloc(bytes);
  std::memset(block, 1, bytes);
  // Keeps the compiler from removing the store to memory that is never read.
  asm volatile("" : : "r"(block) : "memory");
  std::free(block);
  return page_faults() - before;
}

/// Of the heap, by the allocator's own account.
std::size_t bytes_in_use() {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
#else
  return 0;
#endif
}

constexpr std::size_t megabyte = std::size_t{1} << 20;

// Both settings are the process's for good, so this is one test: as on a thread, so that the arena
// is the shared one.
TEST(Memory, IsPopulatedAndKept) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have a malloc of their own";
#endif
  EXPECT_GT(faults_of_using(16 * megabyte), 1000) << "as glibc does";
  use_one_arena();
  keep_freed_memory();
  populate_heap(48 * megabyte);
  EXPECT_LT(faults_of_using(40 * megabyte), 100) << "populated";
  std::thread([] { EXPECT_LT(faults_of_using(40 * megabyte), 100) << "of all threads"; }).join();
  EXPECT_LT(faults_of_using(40 * megabyte), 100) << "kept";
}

TEST(Memory, PopulatesWhatThereIs) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have a malloc of their own";
#endif
  const auto before = page_faults();
  const auto bytes_before = bytes_in_use();
  populate_heap(0);
  populate_heap(1);
  populate_heap(std::numeric_limits<std::size_t>::max() / 2);  // malloc refuses
  EXPECT_LT(page_faults() - before, 100) << "nothing was populated";
  populate_heap(16 * megabyte);
  // The allocator keeps a few small blocks for later.
  EXPECT_LT(bytes_in_use(), bytes_before + megabyte) << "everything was given back";
}

}  // namespace
}  // namespace lockstep
