#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "formats/safetensors.h"
#include "lockstep/model_files.h"

namespace lockstep::testing {

using Values = std::map<std::string, at::Tensor>;
/// Copies of all values of a program; numbers as text.
using AllValues = std::pair<Values, std::string>;

inline void expect_unchanged(const AllValues& got, const AllValues& before,
                             const std::string& what) {
  EXPECT_EQ(got.second, before.second) << what;
  ASSERT_EQ(got.first.size(), before.first.size()) << what;
  for (const auto& [name, tensor] : before.first)
    EXPECT_TRUE(at::equal(got.first.at(name), tensor)) << what << ": " << name;
}

/// Faults of one tensor of a file.
inline const std::vector<std::pair<const char*, std::function<void(Values&, const std::string&)>>>
    file_faults{{"missing", [](Values& tensors, const auto& name) { tensors.erase(name); }},
                {"of a wrong shape",
                 [](Values& tensors, const auto& name) {
                   tensors[name] = tensors[name].flatten().repeat(2);
                 }},
                {"of a wrong dtype", [](Values& tensors, const auto& name) {
                   const bool is_short = tensors[name].scalar_type() == at::kShort;
                   tensors[name] = tensors[name].to(is_short ? at::kInt : at::kShort);
                 }}};

}  // namespace lockstep::testing
