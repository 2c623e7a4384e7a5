#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/launch/launched.h"
#include "tests/launch/simulated_hosts.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {

/// Four simulated hosts, with a command in place of ssh that enters them. Each has a /dev/shm of
/// its own.
class SshHosts : public SimulatedHosts {
 public:
  SshHosts() : SimulatedHosts(4) {
    std::ofstream(ssh())
        << "#!/bin/sh\nhost=$1; shift; cd /; echo $host $$ >>" << ssh() << ".started\n"
        << "exec ip netns exec $host unshare --uts --mount sh -c \"hostname $host; "
        << "mount -t tmpfs none /dev/shm; $*\"\n";
    std::filesystem::permissions(ssh(), std::filesystem::perms::owner_all);
  }
  std::string ssh() const { return (folder_ / "ssh").string(); }
  /// The hosts and processes that the command has started, since the last call.
  std::string started() const {
    const auto text = contents(ssh() + ".started");
    std::filesystem::remove(ssh() + ".started");
    return text;
  }
  /// The first three hosts, with 1, 2 and 1 ranks.
  std::string list() const { return concat(address(0), ":1,", name(1), ":2,", name(2), ":1"); }
  /// `lockstep run` on the first host.
  std::vector<std::string> command(const std::vector<std::string>& words) const {
    auto all = enter(0);
    all.insert(all.end(), {lockstep_program(), "run", "--ssh", ssh()});
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }

 private:
  TemporaryFolder folder_;
};

/// `lockstep run --hosts`.
class HostsBySsh : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.made()) GTEST_SKIP() << "no network namespace can be made here (not root?)";
  }
  TemporaryFolder folder_;
  SshHosts hosts_;
};

}  // namespace lockstep::testing
