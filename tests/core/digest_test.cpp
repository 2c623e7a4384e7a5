#include "core/numeric/digest.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

namespace lockstep::inline v0_2::detail {
namespace {

TEST(Digest, OfNothingIsWhatXxh3Publishes) { EXPECT_EQ(digest({}), 0x2d06800538d394c2); }

TEST(Digest, ChangesWithEveryBit) {
  std::vector<std::byte> bytes(300, std::byte{0x5a});
  const auto whole = digest(bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] ^= std::byte{1} << bit;
      EXPECT_NE(digest(bytes), whole) << "byte " << i << ", bit " << bit;
      bytes[i] ^= std::byte{1} << bit;
    }
  }
  EXPECT_NE(digest(std::span(bytes).first(299)), whole);
}

TEST(Digest, DoesNotDependOnWhereTheBytesLie) {
  std::vector<std::byte> bytes(1100);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 50);
  // The pattern repeats every 50 bytes.
  EXPECT_EQ(digest(std::span(bytes).subspan(0, 1000)), digest(std::span(bytes).subspan(50, 1000)));
}

}  // namespace
}  // namespace lockstep::detail
