#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <utility>

#include "lockstep/core/text.h"
#include "lockstep/group.h"

namespace lockstep::detail {

/// A layer whose batch is spread over ranks. Autograd's graph shares it with the module.
struct SyncLayer : torch::CustomClassHolder {
  SyncLayer(Group ranks, std::string called = {}, std::int64_t place = 0)
      : group(std::move(ranks)), name(std::move(called)), number(place) {}

  /// How messages begin.
  std::string who() const {
    return concat("SyncBatchNorm ", name, name.empty() ? "" : " ", "rank ", group.rank(), " of ",
                  group.size());
  }

  Group group;
  std::string name;     ///< within the converted model; empty for a layer of its own
  std::int64_t number;  ///< from 1, in the converted model's order: the same on all ranks
};

}  // namespace lockstep::detail
