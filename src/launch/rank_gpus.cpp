#include <algorithm>
#include <string_view>

#include "core/text.h"
#include "launch/plan.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;
using detail::plural;

/// The option that asks for GPUs, for error texts.
std::string asking_option(const Options& options) {
  if (options.gpus) return concat("--gpus ", *options.gpus);
  return options.rank_per_gpu ? "-n gpus" : "--share-gpus";
}

void check_device(const Options& options, const Variables& inherited) {
  const auto& device = options.device;
  const bool of_variable = device.empty() && value_of(inherited, "LOCKSTEP_DEVICE") == "cpu";
  if (!options.asks_for_gpus() || (device != "cpu" && !of_variable)) return;
  throw InvalidArgument(concat("device: got ", of_variable ? "LOCKSTEP_DEVICE=cpu" : "cpu",
                               " together with ", asking_option(options),
                               ", expected one of the two. Leave one out"));
}

/// The value of LOCKSTEP_SHARE_GPUS for the ranks: 1, nccl, or empty.
std::string sharing(const Options& options, const Variables& inherited) {
  return options.share_gpus.empty() ? value_of(inherited, "LOCKSTEP_SHARE_GPUS")
                                    : options.share_gpus;
}

/// Throws: InvalidArgument if --gpus has an entry that is neither an index nor a UUID, such as a
/// range.
void check_list(const std::string& list, const std::vector<std::string>& entries) {
  for (const auto& entry : entries) {
    const bool index = !entry.empty() && entry.find_first_not_of("0123456789") == std::string::npos;
    if (index || entry.starts_with("GPU-") || entry.starts_with("MIG-")) continue;
    throw InvalidArgument(concat("gpus: got '", entry, "' in '", list,
                                 "', expected indices such as 0,1, or UUIDs as nvidia-smi -L "
                                 "prints them"));
  }
}

/// A batch system, or the user, may have allotted some GPUs to this job by CUDA_VISIBLE_DEVICES.
void check_allotted(const std::vector<Gpu>& gpus, const std::string& allotted) {
  const auto allowed = find_gpus(allotted).gpus;
  for (const auto& gpu : gpus) {
    if (std::ranges::find(allowed, gpu.uuid, &Gpu::uuid) != allowed.end()) continue;
    throw InvalidArgument(concat("gpus: got ", gpu.id,
                                 ", expected some of CUDA_VISIBLE_DEVICES=", allotted,
                                 " of the environment. Name GPUs of that list, or unset "
                                 "the variable"));
  }
}

}  // namespace

RankGpus choose_gpus(const Options& options, const Variables& inherited) {
  check_device(options, inherited);
  RankGpus chosen;
  if (!options.device.empty()) chosen.variables.emplace_back("LOCKSTEP_DEVICE", options.device);
  if (!options.asks_for_gpus()) return chosen;
  // A program that cannot use GPUs must fail, not train on the CPU.
  if (options.device.empty() && value_of(inherited, "LOCKSTEP_DEVICE").empty()) {
    chosen.variables.emplace_back("LOCKSTEP_DEVICE", "cuda");
  }

  const auto entries = gpu_entries(options.gpus.value_or(""));
  const auto list = detail::joined(entries, ",");
  if (options.gpus) check_list(*options.gpus, entries);
  auto found = options.gpus ? find_gpus(list) : find_gpus();
  if (found.gpus.empty() || found.gpus.size() < entries.size()) {
    throw InvalidArgument(concat(asking_option(options), ": found ",
                                 found.gpus.empty() ? "no GPU" : plural(found.gpus.size(), "GPU"),
                                 ": ", found.problem,
                                 ". To train on the CPU, leave out the options for GPUs and give a "
                                 "number of ranks: -n 2"));
  }
  if (options.gpus) {
    const auto* const allotted = find_variable(inherited, "CUDA_VISIBLE_DEVICES");
    if (allotted != nullptr) check_allotted(found.gpus, *allotted);
    chosen.variables.emplace_back("CUDA_VISIBLE_DEVICES", list);
  }
  const auto share = sharing(options, inherited);
  if (!options.share_gpus.empty()) chosen.variables.emplace_back("LOCKSTEP_SHARE_GPUS", share);
  if (share == "nccl") chosen.variables.emplace_back("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  chosen.shared = share == "1" || share == "nccl";
  chosen.gpus = std::move(found.gpus);
  chosen.note = std::move(found.problem);
  return chosen;
}

void check_ranks(const RankGpus& gpus, int ranks) {
  const auto count = gpus.gpus.size();
  if (count == 0 || gpus.shared || static_cast<std::size_t>(ranks) <= count) return;
  throw InvalidArgument(concat(
      "got ", plural(ranks, "rank"), " for ", plural(count, "GPU"), ": ", labels(gpus.gpus),
      "; expected at most one rank for each GPU. Start ", plural(count, "rank"),
      " (-n gpus), or add --share-gpus: several ranks then use one GPU and exchange through host "
      "memory"));
}

}  // namespace lockstep::launch
