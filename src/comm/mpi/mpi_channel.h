#pragma once

namespace lockstep::inline v0_2::mpi {

/// The purpose of a message of a group. Group and channel identify a stream of messages between two
/// ranks; within it messages arrive in order.
enum class Channel : int {
  announcements,  ///< of collectives, short inputs included
  parts,          ///< inputs of collectives, and partial sums
  results,        ///< what became of them
  offers,         ///< announcements of send()
  payloads        ///< what send() sends
};

inline constexpr int channels = 5;

/// Tag 0 belongs to the world.
inline constexpr int notice_tag = 0;

constexpr int tag_of(int group, Channel channel) {
  return 1 + group * channels + static_cast<int>(channel);
}

constexpr int most_groups(int last_tag) { return last_tag / channels - 1; }

}  // namespace lockstep::mpi
