#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::testing {

// The matchers of most tests.
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Combine;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAreArray;

}  // namespace lockstep::testing
