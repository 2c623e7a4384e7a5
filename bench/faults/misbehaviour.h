#pragma once

#include <string>
#include <vector>

#include "lockstep/group.h"

namespace lockstep::bench {

/// The names of what a rank can do wrong while others take the fifth step of collectives.
/// misbehave() does it.
std::vector<std::string> misbehaviours();

/// Does what the name says. May return. world: null before init(), for what needs no group.
void misbehave(const std::string& name, const Group* world);

/// The rank of this process before init(), from its launcher's variables; -1 if there are none.
int rank_before_init();

}  // namespace lockstep::bench
