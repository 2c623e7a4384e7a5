#include "tests/random_hangs/hang.h"

#include <algorithm>
#include <array>
#include <random>
#include <string_view>

#include "core/text.h"

namespace lockstep::testing {

namespace {

/// Of each Fault.
constexpr std::array<std::string_view, 11> names{
    "sleeps",      "spins",    "stops",         "dies",          "skips",     "other_group",
    "never_waits", "receives", "silent_sender", "skips_wrapper", "in_transit"};

}  // namespace

Hang Hang::make(std::uint64_t seed, std::uint64_t index) {
  std::mt19937_64 random(seed * 1'000'003 + index);
  const auto below = [&](std::size_t n) { return static_cast<int>(random() % n); };
  constexpr int sizes[] = {2, 3, 4, 7};
  constexpr Collective collectives[] = {Collective::all_reduce, Collective::broadcast,
                                        Collective::all_gather, Collective::reduce_scatter,
                                        Collective::barrier};
  Hang hang{.seed = seed, .index = index};
  // Starting MPI takes most of the time.
  hang.hosts = index % 5 == 4 ? 2 : 1;
  hang.size = sizes[below(4)];
  hang.fault = static_cast<Fault>(below(names.size()));
  hang.culprit = below(static_cast<std::size_t>(hang.size));
  hang.last = collectives[below(std::size(collectives))];
  hang.before = below(12);
  if (hang.hosts == 2) {
    // A progress thread completes the operation, and MPI ends the job of a rank that dies.
    if (hang.fault == Fault::never_waits || hang.fault == Fault::dies) hang.fault = Fault::sleeps;
  }
  const bool by_messages = hang.fault == Fault::receives || hang.fault == Fault::silent_sender;
  std::vector<int> others;
  for (int rank = 0; rank < hang.size; ++rank) {
    if (rank != hang.culprit) others.push_back(rank);
  }
  std::ranges::shuffle(others, random);
  hang.partner = others.front();
  // A group of the culprit and at least one other rank; of skips, one is outside, or the operation
  // that the culprit goes on with is the same.
  const auto most = others.size();
  const auto chosen = below(2) == 0 ? most : 1 + random() % most;
  hang.group.assign(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(chosen));
  hang.group.push_back(hang.culprit);
  std::ranges::sort(hang.group);
  hang.nested = static_cast<int>(hang.group.size()) < hang.size && below(2) == 0;
  if (by_messages) {
    const auto length = 1 + random() % most;
    hang.circle.assign(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(length));
    hang.circle.push_back(hang.culprit);
    hang.nested = below(2) == 0;
  }
  return hang;
}

bool Hang::is_member(int rank) const { return std::ranges::find(group, rank) != group.end(); }

std::string Hang::text() const {
  return detail::concat(
      "hang ", index, " of seed ", seed, ": ", names[static_cast<std::size_t>(fault)], ", rank ",
      culprit, " of ", size, hosts == 2 ? " on two simulated hosts" : "", ", ",
      lockstep::name(last), " of ", detail::rank_list(group), nested ? ", nested" : "",
      circle.empty() ? "" : detail::concat(", messages of ", detail::rank_list(circle)));
}

}  // namespace lockstep::testing
