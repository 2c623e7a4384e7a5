#include <gnu/libc-version.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_line.h"
#include "comm/control/address.h"
#include "comm/host/host.h"
#include "comm/mpi/mpi.h"
#include "comm/ucx/ucx.h"
#include "core/environment.h"
#include "core/system/files.h"
#include "core/system/memory.h"
#include "core/system/terminal.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "join/join_world.h"
#include "kernels/reduce.h"
#include "launch/gpus.h"
#include "launch/plan.h"
#include "lockstep/error.h"
#include "lockstep/version.h"

namespace lockstep::cli {
namespace {

using detail::concat;
using detail::plural;
using detail::Row;
using Rows = std::vector<Row>;

std::string gibibytes(const std::string& kibibytes) {
  std::istringstream in(kibibytes);
  double amount = 0;
  if (!(in >> amount)) return "unknown";
  return detail::fixed(amount / (1 << 20), 1) + " GiB";
}

std::string limit(decltype(RLIMIT_NOFILE) resource) {
  rlimit found{};
  if (getrlimit(resource, &found) != 0) return "unknown";
  const auto text = [](rlim_t value) {
    return value == RLIM_INFINITY ? std::string("unlimited") : std::to_string(value);
  };
  return concat(text(found.rlim_cur), " (hard ", text(found.rlim_max), ")");
}

std::string compiler() {
#if defined(__clang__)
  return __VERSION__;
#else
  return "GCC " __VERSION__;
#endif
}

Rows versions() {
  utsname system{};
  uname(&system);
  auto release = detail::fields("/etc/os-release", '=')["PRETTY_NAME"];
  std::erase(release, '"');
  return {{"lockstep", std::string(version())},
          {"build", LOCKSTEP_BUILD_TYPE},
          {"compiler", compiler()},
          {"system", concat(release, ", ", system.machine)},
          {"kernel", system.release},
          {"glibc", gnu_get_libc_version()}};
}

/// The folder of LibTorch's libraries. A relocatable build names it relative to this program's.
std::filesystem::path torch_folder() {
  const std::filesystem::path folder = LOCKSTEP_TORCH_FOLDER;
  if (folder.empty()) return folder;
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / folder)
      .lexically_normal();
}

std::string libtorch() {
  const auto folder = torch_folder();
  if (folder.empty()) return "built without it: configure with -DLOCKSTEP_WITH_TORCH=ON";
  const std::string version = LOCKSTEP_TORCH_VERSION;
  const auto library = folder / "libtorch_cpu.so";
  const bool found = std::filesystem::exists(library);
  const std::string known = version.empty() ? "unknown version" : version;
  // A package is installed on machines that did not build it, and the launcher needs no LibTorch.
  return concat(known, ", ", library.string(),
                found ? "" : ", which is not on this machine: programs are built with another one");
}

/// The network interfaces for connections between hosts.
std::string interfaces() {
  try {
    return control::describe(control::usable_interfaces(
        std::string(detail::variable("LOCKSTEP_INTERFACE").value_or(""))));
  } catch (const CommError& problem) {
    return problem.what();
  }
}

std::string ucx_text() {
  if (const auto why = ucx::available(); !why.empty()) return why;
  return ucx::has_device() ? "works; used without MPI if all ranks can"
                           : "works; no InfiniBand or RoCE here, so LOCKSTEP_TRANSPORT=ucx only";
}

Rows parts() {
  const auto host = host::available();
  const auto mpi = mpi::available();
  return {{"LibTorch", libtorch()},
          {"backend host", host.empty() ? "works" : concat("does not work: ", host)},
          {"backend mpi", mpi.empty() ? mpi::version() : mpi},
          {"between hosts", interfaces()},
          {"UCX", ucx_text()},
          {"CPU targets", detail::joined(kernels::cpu_targets(), " ") + " (the first is used)"}};
}

Rows processors() {
  const auto topology = Topology::read();
  Rows rows{{"processor", detail::fields("/proc/cpuinfo")["model name"]},
            {"cores", concat(plural(topology.cores.size(), "core"), ", ",
                             plural(topology.cpus().size(), "logical CPU"), " allowed of ",
                             sysconf(_SC_NPROCESSORS_ONLN))}};
  for (const int node : topology.nodes()) {
    std::vector<int> cpus;
    for (const auto& core : topology.cores) {
      if (core.node == node) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
    }
    std::sort(cpus.begin(), cpus.end());
    rows.push_back({concat("NUMA node ", node), concat("CPUs ", format_cpu_list(cpus))});
  }
  const auto quota = detail::first_line("/sys/fs/cgroup/cpu.max");
  if (!quota.empty() && !quota.starts_with("max")) {
    rows.push_back({"CPU quota", concat(quota, " (µs of each period; this cgroup)")});
  }
  return rows;
}

/// The shared memory that each rank of a world on all cores can allocate.
std::string shared_heap() {
  const auto ranks = static_cast<int>(Topology::read().cores.size());
  const auto heap = host::heap_size(ranks);
  return concat("at most ", heap.bytes >> 20, " MiB for each of ", plural(ranks, "rank"), ", ",
                heap.bound);
}

Rows memory() {
  auto info = detail::fields("/proc/meminfo");
  const std::filesystem::path huge = "/sys/kernel/mm/transparent_hugepage";
  Rows rows{
      {"memory",
       concat(gibibytes(info["MemTotal"]), ", available ", gibibytes(info["MemAvailable"]))},
      {"swap", gibibytes(info["SwapTotal"])},
      {"huge pages", concat("transparent ", detail::first_line(huge / "enabled"),
                            ", shared memory ", detail::first_line(huge / "shmem_enabled"),
                            ", reserved ", info["HugePages_Total"], " of ", info["Hugepagesize"])},
      {"overcommit", detail::first_line("/proc/sys/vm/overcommit_memory")},
      {"shared heap", shared_heap()}};
  const MemoryGroups groups;
  if (const auto limit = groups.limit()) {
    rows.push_back(
        {"memory limit", concat(limit->bytes >> 20, " MiB, ", groups.available()->bytes >> 20,
                                " MiB available (", limit->group.string(), ")")});
  }
  return rows;
}

Rows limits() {
  return {{"open files", limit(RLIMIT_NOFILE)},     {"processes", limit(RLIMIT_NPROC)},
          {"address space", limit(RLIMIT_AS)},      {"file size", limit(RLIMIT_FSIZE)},
          {"locked memory", limit(RLIMIT_MEMLOCK)}, {"core dumps", limit(RLIMIT_CORE)}};
}

/// The GPUs that a rank sees, the driver and NCCL, each with what to do if it is missing.
Rows gpus() {
  const auto found = launch::find_gpus();
  const auto version = found.driver.empty() ? "" : concat("for CUDA ", found.driver);
  Rows rows{{"driver",
             concat(version, version.empty() || found.problem.empty() ? "" : "; ", found.problem)}};
  for (const auto& gpu : found.gpus) {
    rows.push_back({concat("GPU ", gpu.id),
                    concat(gpu.name, ", ", gibibytes(std::to_string(gpu.memory >> 10)))});
  }
  rows.push_back({"NCCL", launch::nccl_text(torch_folder())});
  return rows;
}

/// The world that init() would join with this environment, and what carries its data.
std::string world_of(const Environment& read) {
  using detail::Way;
  const bool flat = read.backend == Backend::tcp || read.backend == Backend::mpi;
  const std::string between =
      flat ? " between all ranks" : " between hosts, shared memory inside a host";
  const bool may_be_ucx = read.transport == TransportKind::automatic && ucx::has_device();
  const std::string wire = read.transport == TransportKind::ucx ? "UCX"
                           : may_be_ucx                         ? "UCX or TCP"
                                                                : "TCP";
  const auto by_run = concat("rank ", read.rank.value_or(0), " of ", read.world_size.value_or(0),
                             " by lockstep run: ");
  const auto& launcher = read.launcher;
  const auto by_launcher = launcher ? concat("rank ", launcher->rank, " of ", launcher->size,
                                             " by ", launcher->name(), ": ")
                                    : "";
  switch (detail::way_to_join(read, read.backend)) {
    case Way::launched:
      return by_run + "shared memory";
    case Way::launched_hosts:
      return concat(by_run, wire, between, "; rank 0 listens at ", read.master);
    case Way::one_host:
      return by_launcher + "shared memory";
    case Way::messages: {
      const auto rank_0 = detail::place_of_rank_0(*launcher);
      return concat(by_launcher, wire, between,
                    launcher->kind == Launcher::Kind::torchrun
                        ? "; ranks meet in torchrun's store at "
                        : "; rank 0 listens at ",
                    rank_0.first, ':', rank_0.second);
    }
    case Way::mpi:
      return concat(by_launcher, "MPI", between);
    case Way::alone:
      break;
  }
  return "no launcher of several ranks: one rank";
}

/// Environment variables that affect Lockstep or LibTorch.
Rows environment() {
  Rows rows;
  for (const auto& [name, value] : launch::inherited_environment()) {
    const bool is_own = name.starts_with("LOCKSTEP_") || name.starts_with("MASTER_");
    constexpr std::array others{"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS",
                                "OMP_PROC_BIND",        "KMP_AFFINITY",      "GOMP_CPU_AFFINITY",
                                "MKL_NUM_THREADS",      "LD_PRELOAD",        "LD_LIBRARY_PATH",
                                "GLIBC_TUNABLES",       "MALLOC_ARENA_MAX"};
    if (!is_own && std::ranges::find(others, name) == others.end()) continue;
    rows.push_back({name, detail::is_secret(name) ? "(set)" : value});
  }
  try {
    const auto read = Environment::read();
    rows.push_back({"world", world_of(read)});
  } catch (const std::exception& error) {
    rows.push_back({"PROBLEM", error.what()});
  }
  return rows;
}

void doctor() {
  std::cout << detail::table("Versions", versions()) << '\n'
            << detail::table("Parts", parts()) << '\n'
            << detail::table("Processors", processors()) << '\n'
            << detail::table("GPUs", gpus()) << '\n'
            << detail::table("Memory", memory()) << '\n'
            << detail::table("Limits", limits()) << '\n'
            << detail::table("Environment", environment());
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  app.add_subcommand("doctor", "Print what a bug report needs: versions, backends, machine")
      ->callback([&exit_code] {
        doctor();
        exit_code = host::available().empty() ? 0 : 1;
      });
}

}  // namespace lockstep::cli
