#pragma once

#include "lockstep/group.h"
#include "tests/ranks_on_hosts.h"

namespace lockstep::testing {

/// The group, with its ranks on those hosts.
inline Group on_hosts(const Group& group, const std::vector<int>& hosts) {
  return Group(std::make_shared<OnHosts>(group.communicator(), hosts));
}

}  // namespace lockstep::testing
