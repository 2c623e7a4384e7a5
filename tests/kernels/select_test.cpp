#include <limits>

#include "bench/reference/kernels.h"
#include "core/text.h"
#include "kernels/select_largest.h"
#include "tests/kernels/guarded.h"

namespace lockstep::inline v0_2::kernels {
namespace {

enum class Kind { normal, zeros, ties, ascending, descending, sparse, tiny, huge, not_finite };
constexpr Kind kinds[] = {Kind::normal, Kind::zeros, Kind::ties, Kind::ascending, Kind::descending,
                          Kind::sparse, Kind::tiny,  Kind::huge, Kind::not_finite};
constexpr std::size_t select_counts[] = {1, 2, 7, 8, 9, 31, 63, 64, 65, 1000, 20'001};

template <class T>
std::vector<T> make(Kind kind, std::size_t count) {
  std::mt19937_64 random(count);
  std::normal_distribution<T> normal;
  const auto number = [&](std::size_t i) -> T {
    const T value = normal(random);
    switch (kind) {
      case Kind::normal:
        return value;
      case Kind::zeros:
        return i % 2 == 0 ? T{0} : -T{0};
      case Kind::ties:
        return std::round(value);
      case Kind::ascending:
        return static_cast<T>(i);
      case Kind::descending:
        return static_cast<T>(count) / 2 - static_cast<T>(i);
      case Kind::sparse:
        return random() % 300 == 0 ? value : T{0};
      case Kind::tiny:
        return value * std::numeric_limits<T>::min() / 64;
      case Kind::huge:
        return i == count / 3 ? std::numeric_limits<T>::max() : value;
      case Kind::not_finite:
        break;
    }
    const bool is_infinite = random() % 50 == 0;
    if (random() % 50 == 0) return std::numeric_limits<T>::quiet_NaN();
    return is_infinite ? std::numeric_limits<T>::infinity() : value;
  };
  std::vector<T> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = number(i);
  return data;
}

template <class T>
bool same(T a, T b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

/// A gradient and a residual at a misalignment, in memory that is guarded.
template <class T>
struct Vectors {
  Vectors(const std::vector<T>& gradient, std::size_t misalignment)
      : first(gradient.size() * sizeof(T), misalignment),
        second(gradient.size() * sizeof(T), misalignment) {
    std::copy(gradient.begin(), gradient.end(), first.template as<T>().begin());
    // The residual must change some elements, and the sum must not round the ties away.
    std::fill_n(second.template as<T>().begin(), gradient.size(), T{0});
    for (std::size_t i = 0; i < gradient.size(); i += 3) second.template as<T>()[i] = gradient[i];
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      sum.push_back(first.template as<T>()[i] + second.template as<T>()[i]);
    }
  }
  void expect_moved(const std::string& what) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      ASSERT_EQ(first.template as<T>()[i], 0) << what << ", gradient " << i;
      ASSERT_TRUE(same(second.template as<T>()[i], sum[i])) << what << ", residual " << i;
    }
    ASSERT_TRUE(first.guards_untouched() && second.guards_untouched()) << what;
  }
  Buffer first;
  Buffer second;
  std::vector<T> sum;
};

template <class T>
void expect_picks(const std::vector<T>& data, const std::vector<std::uint32_t>& expected,
                  const Picks<T>& picks, const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(picks.indices[i], expected[i]) << what << ", pick " << i;
    ASSERT_TRUE(same(picks.values[i], data[expected[i]])) << what << ", pick " << i;
  }
}

template <class T>
void check_top(Kind kind, std::size_t count, std::size_t k, std::size_t misalignment,
               SelectSpace<T>& space) {
  const auto what = lockstep::detail::concat("kind ", static_cast<int>(kind), ", ", k, " of ",
                                             count, " at +", misalignment);
  const auto data = make<T>(kind, count);
  Vectors<T> vectors(data, misalignment);
  std::vector<std::uint32_t> indices(k);
  std::vector<T> values(k);
  const Picks<T> picks{indices, values};

  select_top<T>(vectors.first.template as<T>(), {}, space, picks);
  expect_picks(data, reference::largest<T>(data, k), picks, what);
  ASSERT_TRUE(std::equal(data.begin(), data.end(), vectors.first.template as<T>().begin(), same<T>))
      << what << ": the data changed";

  select_top(vectors.first.template as<T>(), vectors.second.template as<T>(), space, picks);
  expect_picks(vectors.sum, reference::largest<T>(vectors.sum, k), picks, what + ", moved");
  vectors.expect_moved(what);
}

template <class T>
void check_all_top() {
  for (const Kind kind : kinds) {
    for (const std::size_t count : select_counts) {
      // One space serves all k up to its own.
      SelectSpace<T> space(count);
      for (const std::size_t k : {std::size_t{0}, std::size_t{1}, count / 100, count / 2, count}) {
        const std::size_t misalignment = float_misalignments[(count + k) % 5] / 8 * sizeof(T);
        check_top<T>(kind, count, k, misalignment, space);
        if (::testing::Test::HasFatalFailure()) return;
      }
      // A space too small for all that passes throws candidates out on the way.
      SelectSpace<T> small(count / 200);
      check_top<T>(kind, count, count / 200, 0, small);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

template <class T>
void check_above(Kind kind, std::size_t count, T threshold, std::size_t room) {
  const auto what = lockstep::detail::concat("kind ", static_cast<int>(kind), ", ", count,
                                             " above ", threshold, " into ", room);
  const auto data = make<T>(kind, count);
  Vectors<T> vectors(data, 4 * (count % 3) / sizeof(T) * sizeof(T));
  Buffer indices(room * sizeof(std::uint32_t), 4);
  Buffer values(room * sizeof(T), 8);
  const Picks<T> picks{indices.as<std::uint32_t>(), values.template as<T>()};

  const auto check = [&](const std::vector<T>& from, std::size_t found) {
    const auto expected = reference::above<T>(from, threshold);
    ASSERT_EQ(found, expected.size()) << what;
    if (found + select_slack <= room) expect_picks(from, expected, picks, what);
    ASSERT_TRUE(indices.guards_untouched() && values.guards_untouched()) << what;
  };
  check(data, select_above<T>(vectors.first.template as<T>(), {}, threshold, picks));
  check(vectors.sum, select_above(vectors.first.template as<T>(), vectors.second.template as<T>(),
                                  threshold, picks));
  vectors.expect_moved(what);
}

template <class T>
void check_all_above() {
  for (const Kind kind : kinds) {
    for (const std::size_t count : select_counts) {
      for (const T threshold : {T{0}, T(1e-40), T(0.5), T(2), std::numeric_limits<T>::max()}) {
        for (const std::size_t room :
             {select_slack, select_slack + 10, select_slack + count / 2, select_slack + count}) {
          check_above<T>(kind, count, threshold, room);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

class SelectOnTarget : public OnTarget {};

TEST_P(SelectOnTarget, PicksTheLargest) { check_all_top<float>(); }
TEST_P(SelectOnTarget, PicksWhatIsAboveAThreshold) { check_all_above<float>(); }

INSTANTIATE_TEST_SUITE_P(Cpu, SelectOnTarget, every_target(), target_name);

TEST(Select, PicksTheLargestDoubles) { check_all_top<double>(); }
TEST(Select, PicksDoublesAboveAThreshold) { check_all_above<double>(); }

// The sample's positions must not be able to hide where the large values are.
TEST(Select, PicksTheLargestWhereverTheyAre) {
  constexpr std::size_t count = 300'000;
  for (const std::size_t stride : {2, 64, 4096}) {
    std::vector<float> data(count);
    for (std::size_t i = 0; i < count; ++i) {
      data[i] = i % stride == 0 ? 1 + static_cast<float>(i % 77) : 1e-3f;
    }
    const std::size_t k = count / 100;
    SelectSpace<float> space(k);
    std::vector<std::uint32_t> indices(k);
    std::vector<float> values(k);
    select_top<float>(data, {}, space, {indices, values});
    EXPECT_EQ(indices, reference::largest<float>(data, k)) << "stride " << stride;
  }
}

TEST(ScatterAdd, AddsEveryPickAndEveryRepetition) {
  std::vector<double> data(5, 1);
  const std::vector<std::uint32_t> indices{4, 0, 4};
  const std::vector<double> values{2, 4, 6};
  scatter_add<double>(data, indices, values, 0.5);
  EXPECT_EQ(data, (std::vector<double>{3, 1, 1, 1, 5}));
}

}  // namespace
}  // namespace lockstep::kernels
