#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "core/text.h"
#include "launch/plan.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;
using detail::plural;

bool is_uuid(const std::string& entry) {
  return entry.starts_with("GPU-") || entry.starts_with("MIG-");
}

/// The option that asks for GPUs, for error texts.
std::string asking_option(const Options& options) {
  if (options.gpus) return concat("--gpus ", *options.gpus);
  return options.rank_per_gpu ? "-n gpus" : "--share-gpus";
}

void check_device(const Options& options, const Variables& inherited) {
  constexpr std::array devices{"auto", "cpu", "cuda"};
  const auto& device = options.device;
  if (!device.empty() && std::ranges::find(devices, device) == devices.end()) {
    throw InvalidArgument(concat("device: got '", device, "', expected auto, cpu or cuda"));
  }
  const bool of_variable = device.empty() && value_of(inherited, "LOCKSTEP_DEVICE") == "cpu";
  if (!options.asks_for_gpus() || (device != "cpu" && !of_variable)) return;
  throw InvalidArgument(concat("device: got ", of_variable ? "LOCKSTEP_DEVICE=cpu" : "cpu",
                               " together with ", asking_option(options),
                               ", expected one of the two. Leave one out"));
}

/// The value of LOCKSTEP_SHARE_GPUS for the ranks: 1, nccl, or empty.
std::string sharing(const Options& options, const Variables& inherited) {
  if (options.share_gpus.empty()) return value_of(inherited, "LOCKSTEP_SHARE_GPUS");
  if (options.share_gpus == "1" || options.share_gpus == "nccl") return options.share_gpus;
  throw InvalidArgument(concat("share-gpus: got '", options.share_gpus,
                               "', expected --share-gpus (through host memory) or "
                               "--share-gpus=nccl"));
}

/// The entries of --gpus.
std::vector<std::string> parse_list(const std::string& list) {
  const auto entries = gpu_entries(list);
  if (entries.empty()) {
    throw InvalidArgument("gpus: got an empty list, expected indices such as 0,1");
  }
  for (const auto& entry : entries) {
    const bool index = !entry.empty() && entry.find_first_not_of("0123456789") == std::string::npos;
    if (!index && !is_uuid(entry)) {
      throw InvalidArgument(concat("gpus: got '", entry, "' in '", list,
                                   "', expected indices such as 0,1, or UUIDs as nvidia-smi -L "
                                   "prints them"));
    }
    if (is_uuid(entry) != is_uuid(entries.front())) {
      throw InvalidArgument(concat("gpus: got '", list,
                                   "', expected indices only or UUIDs only: CUDA reads no list of "
                                   "both"));
    }
  }
  return entries;
}

InvalidArgument no_gpus(const Options& options, const std::string& problem) {
  return InvalidArgument(concat(asking_option(options), ": found no GPU: ", problem,
                                ". To train on the CPU, leave out the options for GPUs and give a "
                                "number of ranks: -n 2"));
}

/// The GPUs of --gpus.
GpuList named_gpus(const Options& options, const GpuSources& sources) {
  const auto entries = parse_list(*options.gpus);
  const auto list = detail::joined(entries, ",");
  if (entries.front().starts_with("MIG-")) {
    auto found = find_gpus(sources, list);  // only CUDA knows MIG devices
    if (found.gpus.empty()) throw no_gpus(options, found.problem);
    if (entries.size() > 1) {
      throw InvalidArgument(concat("gpus: got ", entries.size(),
                                   " MIG devices, expected one: a CUDA process uses one MIG "
                                   "device. Name one, and add --share-gpus for several ranks"));
    }
    return found;
  }
  auto all = find_gpus(sources, std::nullopt);
  if (all.gpus.empty()) throw no_gpus(options, all.problem);
  std::vector<Gpu> gpus;
  std::set<std::size_t> taken;
  for (const auto& entry : entries) {
    const auto index = gpu_index(all.gpus, entry);
    if (!index) {
      throw InvalidArgument(concat("gpus: got ", entry, ", expected some of ",
                                   plural(all.gpus.size(), "GPU"),
                                   " of this host: ", labels(all.gpus)));
    }
    if (!taken.insert(*index).second) {
      throw InvalidArgument(concat("gpus: got GPU ", entry, " twice in ", *options.gpus,
                                   ", expected each GPU once. --share-gpus lets several ranks use "
                                   "one GPU"));
    }
    gpus.push_back(all.gpus[*index]);
    gpus.back().id = is_uuid(entry) ? entry : std::to_string(*index);
  }
  all.gpus = std::move(gpus);
  return all;
}

/// A batch system, or the user, may have allotted some GPUs to this job by CUDA_VISIBLE_DEVICES.
void check_allotted(const std::vector<Gpu>& gpus, const std::string& allotted,
                    const GpuSources& sources) {
  const auto allowed = find_gpus(sources, allotted).gpus;
  for (const auto& gpu : gpus) {
    const bool found = std::any_of(allowed.begin(), allowed.end(), [&](const Gpu& one) {
      return gpu.uuid.empty() ? gpu.id == one.id : gpu.uuid == one.uuid;
    });
    if (found) continue;
    throw InvalidArgument(concat("gpus: got ", gpu.id,
                                 ", expected some of CUDA_VISIBLE_DEVICES=", allotted,
                                 " of the environment. Name GPUs of that list, or unset "
                                 "the variable"));
  }
}

}  // namespace

RankGpus choose_gpus(const Options& options, const Variables& inherited,
                     const GpuSources& sources) {
  check_device(options, inherited);
  RankGpus chosen;
  if (!options.device.empty()) chosen.variables.emplace_back("LOCKSTEP_DEVICE", options.device);
  if (!options.asks_for_gpus()) return chosen;
  // A program that cannot use GPUs must fail, not train on the CPU.
  if (options.device.empty() && value_of(inherited, "LOCKSTEP_DEVICE").empty()) {
    chosen.variables.emplace_back("LOCKSTEP_DEVICE", "cuda");
  }

  const auto* const inherited_list = find_variable(inherited, "CUDA_VISIBLE_DEVICES");
  const auto allotted = inherited_list != nullptr ? std::optional(*inherited_list) : std::nullopt;
  GpuList found;
  if (options.gpus) {
    found = named_gpus(options, sources);
    if (allotted) check_allotted(found.gpus, *allotted, sources);
    const auto list = detail::joined(found.gpus, ",", &Gpu::id);
    chosen.variables.emplace_back("CUDA_VISIBLE_DEVICES", list);
  } else {
    found = find_gpus(sources, allotted);
    if (found.gpus.empty()) throw no_gpus(options, found.problem);
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
