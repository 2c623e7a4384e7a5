#include "kernels/copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <vector>

#include "tests/kernels/guarded.h"

namespace lockstep::inline v0_2::kernels {
namespace {

/// No two cache lines of the same bytes.
std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>(i * 0x9e3779b97f4a7c15 >> 56);
  }
  return bytes;
}

void check(std::size_t bytes, std::size_t from, std::size_t to, std::size_t whole) {
  const auto contents = some_bytes(bytes);
  Buffer source(bytes, from);
  Buffer target(bytes, to);
  source.assign(contents);
  copy_part(target.data(), source.data(), bytes, whole);
  EXPECT_TRUE(std::ranges::equal(target.contents(), contents))
      << bytes << " bytes, " << from << " to " << to;
  EXPECT_TRUE(target.guards_untouched()) << bytes << " bytes, " << from << " to " << to;
}

void check(std::size_t bytes, std::size_t from, std::size_t to) { check(bytes, from, to, bytes); }

TEST(Copy, EveryLengthAndAlignment) {
  for (const std::size_t bytes : {0, 1, 63, 64, 65, 1000}) {
    for (const std::size_t misalignment : {0, 1, 8, 60}) {
      check(bytes, 0, misalignment);
      check(bytes, misalignment, 8, copied_past_caches);  // a part of a long copy
    }
  }
  for (const std::size_t more : {0, 1, 63, 64, 65, 127}) {
    const auto bytes = copied_past_caches - 64 + more;
    check(bytes, 0, 0);
    check(bytes, 4, 60);
    check(bytes, 1, 33);
  }
}

TEST(Copy, ToSeveralPlaces) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{40'000},
                                  copied_past_caches - 1, copied_past_caches + 7}) {
    const auto contents = some_bytes(bytes);
    Buffer source(bytes, 4);
    Buffer first(bytes, 0);
    Buffer second(bytes, 33);
    source.assign(contents);
    const std::array places{first.data(), source.data(), second.data()};
    copy_bytes(places, source.data(), bytes);
    for (auto* target : {&first, &source, &second}) {
      EXPECT_TRUE(std::ranges::equal(target->contents(), contents)) << bytes;
      EXPECT_TRUE(target->guards_untouched()) << bytes;
    }
  }
}

TEST(Copy, OntoItself) {
  auto bytes = some_bytes(copied_past_caches);
  const auto before = bytes;
  copy_bytes(bytes.data(), bytes.data(), bytes.size());
  EXPECT_EQ(std::memcmp(bytes.data(), before.data(), bytes.size()), 0);
  copy_bytes(nullptr, nullptr, 0);
}

}  // namespace
}  // namespace lockstep::kernels
