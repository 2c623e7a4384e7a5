#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "lockstep/group.h"

namespace lockstep::testing {

/// Bit for bit. Ranks: all.
inline bool same_on_all_ranks(const at::Tensor& values, const Group& group) {
  const auto own = values.detach().contiguous();
  const auto all = at::empty({group.size() * own.numel()}, own.options());
  group.all_gather(all, own).wait();
  const auto rows = all.view({group.size(), own.numel()});
  return rows.eq(rows[0]).all().item<bool>();
}

}  // namespace lockstep::testing
