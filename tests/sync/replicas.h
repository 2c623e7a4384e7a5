#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "lockstep/group.h"

namespace lockstep::testing {

/// Bit for bit. Ranks: all.
inline bool same_on_all_ranks(const at::Tensor& values, const Group& group) {
  const auto all = at::empty({group.size() * values.numel()}, values.options());
  group.all_gather(all, values.contiguous()).wait();
  const auto rows = all.view({group.size(), -1});
  return rows.eq(rows[0]).all().item<bool>();
}

}  // namespace lockstep::testing
