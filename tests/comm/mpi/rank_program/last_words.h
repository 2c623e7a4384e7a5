#pragma once

#include <signal.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

#include "comm/communicator.h"
#include "lockstep/error.h"

namespace lockstep::testing {

/// The errors of ranks at the end of their world, as files in a folder that all hosts share. Their
/// outputs may not reach the launcher any more.
class LastWords {
 public:
  explicit LastWords(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Repeats the step until the world ends, and writes the error to a file.
  void meet_the_end(Communicator& group, const std::function<void()>& step) const {
    try {
      for (;;) step();
    } catch (const Error& error) {
      leave("rank" + std::to_string(group.rank()), error.what());
    }
  }

  /// A file of that name, whole once it is there.
  void leave(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / (name + ".part")) << text;
    std::filesystem::rename(folder_ / (name + ".part"), folder_ / name);
  }

  void await(const std::string& name) const {
    const int news = ::inotify_init1(IN_CLOEXEC);
    if (news < 0 || ::inotify_add_watch(news, folder_.c_str(), IN_MOVED_TO) < 0) {
      throw Error(folder_.string() + ": cannot watch it: " + std::strerror(errno));
    }
    std::array<char, 4096> events;
    while (::access((folder_ / name).c_str(), F_OK) != 0 &&
           ::read(news, events.data(), events.size()) > 0) {
    }
    ::close(news);
  }

 private:
  std::filesystem::path folder_;
};

/// Rank 0 cuts the link between the hosts, and joins it again once all ranks have met the end.
inline int cut_the_link(Communicator& group, const LastWords& words) {
  const bool first = group.rank() == 0;
  if (first) {
    group.barrier().wait();
    words.leave("cut", "");
    if (std::system("ip link set link0 down") != 0) return 98;
  }
  words.meet_the_end(group, [&] { group.barrier().wait(); });
  if (first) {
    for (int rank = 0; rank < group.size(); ++rank) words.await("rank" + std::to_string(rank));
    if (std::system("ip link set link0 up") != 0) return 98;
    words.leave("joined", "");
  }
  words.await("joined");
  return 1;
}

/// The last rank is killed while the others wait for its message, or for one of any rank: OpenMPI
/// itself may end a rank that sends to a dead one.
inline int kill_the_last(Communicator& group, const LastWords& words, bool from_any) {
  const int last = group.size() - 1;
  if (group.rank() == last) {
    group.barrier().wait();
    words.leave("cut", "");
    return ::raise(SIGKILL);
  }
  bool together = false;
  words.meet_the_end(group, [&] {
    if (!std::exchange(together, true)) return group.barrier().wait();
    float word = 0;
    group.recv(&word, 1, DType::f32, from_any ? any_source : last).wait();
  });
  return 1;
}

}  // namespace lockstep::testing
