#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <type_traits>
#include <typeinfo>

#include "lockstep/error.h"
#include "lockstep/group.h"
#include "tests/groups.h"

namespace lockstep::testing {
namespace {

/// The error that all_or_none() raises on this rank when the last rank throws.
template <class Thrown>
std::string raised(const Group& group, bool& same_type) {
  try {
    all_or_none(group, [&] {
      if (group.rank() == group.size() - 1) throw Thrown("the cause");
    });
  } catch (const std::exception& error) {
    same_type = typeid(error) == typeid(Thrown);
    return error.what();
  }
  return "went on alone";
}

template <class Thrown>
void expect_from_last_rank(int ranks) {
  run_groups(ranks, [&](const Group& group) {
    const int last = ranks - 1;
    const bool own = group.rank() == last;
    bool same_type = false;
    EXPECT_EQ(raised<Thrown>(group, same_type),
              own ? "the cause" : "rank " + std::to_string(last) + ": the cause");
    EXPECT_EQ(same_type, own || (std::is_base_of_v<Error, Thrown>));
    group.barrier().wait();
  });
}

TEST(AllOrNone, AnErrorOfOneRankReachesAll) {
  for (const int ranks : {1, 2, 3, 7}) {
    expect_from_last_rank<DataError>(ranks);
    expect_from_last_rank<CheckpointError>(ranks);
    expect_from_last_rank<InvalidArgument>(ranks);
    expect_from_last_rank<std::logic_error>(ranks);
  }
}

TEST(AllOrNone, TheFirstOfSeveralErrorsIsToldToTheOthers) {
  run_groups(3, [](const Group& group) {
    try {
      all_or_none(group, [&] {
        if (group.rank() > 0) throw DataError("of rank " + std::to_string(group.rank()));
      });
      ADD_FAILURE();
    } catch (const DataError& error) {
      EXPECT_EQ(std::string(error.what()), group.rank() == 0
                                               ? "rank 1: of rank 1"
                                               : "of rank " + std::to_string(group.rank()));
    }
  });
}

TEST(AllOrNone, RepeatedErrorsHaveTheFieldsOfTheFirst) {
  run_groups(3, [](const Group& world) {
    const Group last_two = world.split(world.rank() == 0 ? 0 : 1);
    try {
      all_or_none(world, [&] {
        if (world.rank() == 0) return;
        all_or_none(last_two, [&] {
          if (world.rank() == 2) throw DataError("short file", {.operation = "read"});
        });
      });
      ADD_FAILURE();
    } catch (const DataError& error) {
      const bool own = world.rank() == 2;
      EXPECT_EQ(error.kind(), ErrorKind::data);
      EXPECT_EQ(error.rank(), own ? -1 : 2);
      EXPECT_EQ(error.operation(), "read");
      EXPECT_EQ(error.cause(), own ? "" : "short file");
      EXPECT_EQ(error.cause_kind(), ErrorKind::data);
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
