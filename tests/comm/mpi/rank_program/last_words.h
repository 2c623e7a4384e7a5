#pragma once

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/error.h"

namespace lockstep::testing {

/// What ranks say when their world ends, as files of a folder that all hosts see: their outputs
/// may not reach the launcher any more.
class LastWords {
 public:
  explicit LastWords(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Barriers until the world ends. What that was is left behind.
  void meet_the_end(Communicator& group) const {
    try {
      for (;;) group.barrier().wait();
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
    while (::access((folder_ / name).c_str(), F_OK) != 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace lockstep::testing
