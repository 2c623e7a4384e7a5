// Makes worlds hang in random ways, and checks that `lockstep status` names the rank and the
// operation.
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <deque>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "comm/flight/flight_record.h"
#include "comm/hierarchical/hierarchical.h"
#include "comm/host/host.h"
#include "comm/host/world/world.h"
#include "core/numeric/estimates.h"
#include "tests/launch/launched.h"
#include "tests/mpirun.h"
#include "tests/random_hangs/hang.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using detail::concat;
using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr auto far_off = 10min;
constexpr int most_attempts = 5;
constexpr double longest_answer = 1;  ///< seconds of one question

struct Arguments {
  std::uint64_t seed = 1;
  std::uint64_t first = 0;
  std::uint64_t hangs = 20;
  bool verbose = false;
  int rank = -1;  ///< of a process on one host
  bool is_mpi_rank = false;
  std::string folder;
};

/// Gives this process a /dev/shm of its own, as on another host. False if the kernel does not allow
/// it: the records of all ranks are then in one folder.
bool isolate(const std::filesystem::path& folder) {
  std::error_code exists;
  std::filesystem::create_directories(folder, exists);
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount(folder.c_str(), detail::flight_folder, nullptr, MS_BIND, nullptr) == 0;
}

/// What stands for the /dev/shm of the second host.
std::filesystem::path second_host(const std::string& job) {
  return std::filesystem::path(detail::flight_folder) / concat(job, "-two");
}

int run_as_rank(const Arguments& arguments) {
  const auto hang = Hang::make(arguments.seed, arguments.first);
  if (!arguments.is_mpi_rank) {
    run_rank(hang,
             host::create(host::World::attach(Outputs::kept_as, hang.size), arguments.rank,
                          {.timeout = far_off}),
             arguments.folder);
  }
  const auto rank = std::stoi(std::getenv("OMPI_COMM_WORLD_RANK"));
  std::ofstream(std::filesystem::path(arguments.folder) / concat("pid-", rank)) << ::getpid();
  if (rank >= hang.size / 2) isolate(second_host(std::getenv("LOCKSTEP_RUN_ID")));
  run_rank(
      hang,
      hierarchical::create_over_mpi(
          {.timeout = far_off, .host = rank < hang.size / 2 ? "one" : "two", .heartbeat = far_off},
          {.timeout = far_off}),
      arguments.folder);
}

/// The processes of one world that hangs.
class World {
 public:
  explicit World(const Hang& hang) : hang_(hang) {
    job_ = concat("hang-", ::getpid(), "-", hang.index);
    // The processes end with this one. Hosts share no memory.
    const Words words{"setpriv", "--pdeathsig", "TERM"};
    const Words rank{std::filesystem::read_symlink("/proc/self/exe").string(),
                     "--seed",
                     concat(hang.seed),
                     "--first",
                     concat(hang.index),
                     "--folder",
                     folder_.path().string()};
    const Launched::Variables variables{{"LOCKSTEP_RUN_ID", job_},
                                        {"OMPI_MCA_btl", "self,tcp"},
                                        {"OMPI_MCA_btl_tcp_if_include", "lo"}};
    if (hang.hosts == 2) {
      children_.emplace_back(joined(words, {mpirun(hang.size), rank, {"--mpi-rank"}}), variables);
      return;
    }
    memory_ = host::World::create(hang.size);
    for (int i = 0; i < hang.size; ++i) {
      children_.emplace_back(joined(words, {rank, {"--rank", concat(i)}}), variables,
                             Outputs{.kept = memory_->fd()});
    }
  }
  ~World() {
    // mpirun ends the ranks, and removes its own files.
    for (const auto& child : children_) child.send(hang_.hosts == 2 ? SIGTERM : SIGKILL);
    for (int rank = 0; hang_.hosts == 2 && rank < hang_.size; ++rank) {
      pid_t process = 0;
      if (std::ifstream(folder_ / concat("pid-", rank)) >> process) ::kill(process, SIGKILL);
    }
    for (auto& child : children_) child.wait();
    std::error_code absent;
    std::filesystem::remove_all(second_host(job_), absent);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const std::string& job() const { return job_; }

  /// Returns the operation that each rank waits in, once all ranks have written theirs.
  std::map<int, std::string> await() const {
    std::map<int, std::string> waits;
    const auto until = Clock::now() + 60s;
    while (static_cast<int>(waits.size()) < hang_.size) {
      if (Clock::now() > until) throw std::runtime_error("the ranks did not start within 60 s");
      std::this_thread::sleep_for(5ms);
      for (int rank = 0; rank < hang_.size; ++rank) {
        std::ifstream in(folder_ / concat(rank));
        std::string line;
        if (std::getline(in, line)) waits[rank] = line;
      }
    }
    return waits;
  }

 private:
  const Hang& hang_;
  TemporaryFolder folder_;
  std::string job_;
  std::shared_ptr<host::World> memory_;
  std::deque<Launched> children_;
};

/// The ranks of a host find a deadlock themselves, after about 2 s, and end. On a busy machine the
/// question may come later.
struct HasEnded : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Returns the answer of `lockstep status` about the job, and the seconds until it came.
std::pair<json, double> ask(const std::string& job) {
  const auto ended = run_cli({"status", "--json", job});
  const auto jobs = json::parse(ended.out, nullptr, false);
  if (ended.out.starts_with("[]")) throw HasEnded("the ranks ended before the question");
  if (!jobs.is_array() || jobs.size() != 1) {
    throw std::runtime_error("status says: " + ended.out + ended.err);
  }
  return {jobs[0], ended.seconds.count()};
}

std::vector<int> sorted(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  return ranks;
}

/// Returns the error in the diagnosis; empty if it is right.
std::string check(const Hang& hang, const std::map<int, std::string>& waits, const json& job) {
  const auto& found = job["diagnosis"];
  const auto kind = found["kind"].get<std::string>();
  const auto ranks = found["ranks"].get<std::vector<int>>();
  std::string expected_kind = "missing";
  std::vector<int> expected{hang.culprit};
  if (hang.fault == Fault::skips || hang.fault == Fault::other_group ||
      hang.fault == Fault::skips_wrapper) {
    expected_kind = "deadlock";
    if (hang.group.size() == 2) expected = hang.group;
  } else if (hang.fault == Fault::receives) {
    expected_kind = "deadlock";
    expected = sorted(hang.circle);
  } else if (hang.fault == Fault::in_transit) {
    expected_kind = "transit";
    expected.clear();
    for (const auto& [rank, wait] : waits) {
      if (wait != "none") expected.push_back(rank);
    }
  }
  // A host whose only rank is stopped cannot answer, so its rank has no record here.
  const int of_first_host = hang.size / 2;
  const int of_own_host = hang.culprit < of_first_host ? of_first_host : hang.size - of_first_host;
  const bool is_silent = hang.hosts == 2 && hang.fault == Fault::stops && of_own_host == 1 &&
                         !job["no_answer"].empty();
  if (is_silent) expected_kind = "unseen";
  if (kind != expected_kind || ranks != expected) {
    return concat("got ", kind, " of ", detail::rank_list(ranks), ", expected ", expected_kind,
                  " of ", detail::rank_list(expected));
  }
  for (const auto& edge : found["edges"]) {
    const auto& in = edge["in"];
    const auto said = concat(in["operation"].get<std::string>(), ' ',
                             detail::rank_list(in["group"].get<std::vector<int>>()));
    const auto& is = waits.at(edge["rank"].get<int>());
    if (said != is)
      return concat("rank ", edge["rank"].get<int>(), " waits in ", is, ", got ", said);
  }
  if (is_silent) return {};
  std::string state = waits.at(hang.culprit) == "none" ? "computing" : "waiting";
  if (hang.fault == Fault::stops) state = "stopped";
  if (hang.fault == Fault::dies) state = "ended";
  const auto& got = job["ranks"][static_cast<std::size_t>(hang.culprit)]["state"];
  if (got != state) return concat("rank ", hang.culprit, " is ", state, ", got ", got.dump());
  return {};
}

struct Result {
  std::string wrong;
  double seconds = 0;      ///< of the question
  bool is_remote = false;  ///< another host has answered
};

Result run(const Hang& hang, const Arguments& arguments) {
  const World world(hang);
  const auto waits = world.await();
  const auto waiting =
      std::ranges::count_if(waits, [](const auto& wait) { return wait.second != "none"; });
  // Ranks in transit wait for other ranks at each moment.
  int questions = hang.fault == Fault::in_transit ? 5 : 1;
  double longest = 0;
  // The last rank has written what it will do, and does it now. The first complete answer counts.
  const auto until = Clock::now() + 20s;
  std::this_thread::sleep_for(250ms);
  for (;;) {
    const auto [job, seconds] = ask(world.job());
    const bool some_ended = std::ranges::any_of(
        job["ranks"], [](const json& rank) { return rank["state"] == "ended"; });
    if (some_ended && hang.fault != Fault::dies) {
      throw HasEnded("ranks ended before the question");
    }
    const auto& found = job["diagnosis"];
    const bool complete =
        static_cast<std::ptrdiff_t>(found["edges"].size()) >= waiting && job["unseen"].empty();
    if (!complete && Clock::now() < until) {
      std::this_thread::sleep_for(50ms);
      continue;
    }
    longest = std::max(longest, seconds);
    auto wrong = check(hang, waits, job);
    if (wrong.empty() && seconds > longest_answer) {
      wrong = concat("the answer took ", seconds, " s");
    }
    if (wrong.empty() && --questions > 0) continue;
    if (!wrong.empty() || arguments.verbose) {
      for (const auto& line : found["text"]) std::cout << "    " << line.get<std::string>() << '\n';
    }
    const bool remote = std::ranges::any_of(
        job["ranks"], [](const json& rank) { return rank["remote"].get<bool>(); });
    return {.wrong = wrong, .seconds = longest, .is_remote = remote};
  }
}

int run_all(const Arguments& arguments) {
  std::uint64_t wrong = 0;
  std::uint64_t remote = 0;
  std::vector<double> times;
  for (auto index = arguments.first; index < arguments.first + arguments.hangs; ++index) {
    const auto hang = Hang::make(arguments.seed, index);
    if (arguments.verbose) std::cout << hang.text() << std::endl;
    Result result;
    for (int attempt = 0; attempt < most_attempts; ++attempt) {
      try {
        result = run(hang, arguments);
        break;
      } catch (const HasEnded& error) {
        result.wrong = error.what();
      } catch (const std::exception& error) {
        result.wrong = error.what();
        break;
      }
    }
    times.push_back(result.seconds);
    if (result.is_remote) ++remote;
    if (result.wrong.empty()) continue;
    ++wrong;
    std::cout << hang.text() << ": " << result.wrong << "\n  random_hangs --seed " << hang.seed
              << " --first " << hang.index << " --hangs 1 --verbose" << std::endl;
  }
  detail::remove_ended_flight_records();
  std::cout << arguments.hangs - wrong << " of " << arguments.hangs
            << " hangs were diagnosed right; an answer took " << detail::median(times)
            << " s (median), " << *std::ranges::max_element(times) << " s (longest); in " << remote
            << ", a host answered over the control connections" << std::endl;
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  using namespace lockstep::testing;
  Arguments arguments;
  CLI::App app{"Makes worlds hang at random and checks what lockstep status says"};
  app.add_option("--seed", arguments.seed, "Seed of the hangs")->capture_default_str();
  app.add_option("--first", arguments.first, "Index of the first hang")->capture_default_str();
  app.add_option("--hangs", arguments.hangs, "Number of hangs")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--verbose", arguments.verbose, "Print each hang and its diagnosis");
  app.add_option("--rank", arguments.rank, "Be this rank")->group("");
  app.add_flag("--mpi-rank", arguments.is_mpi_rank, "Be a rank of an MPI job")->group("");
  app.add_option("--folder", arguments.folder, "Where a rank says what it waits in")->group("");
  CLI11_PARSE(app, argc, argv);
  try {
    if (arguments.rank >= 0 || arguments.is_mpi_rank) return run_as_rank(arguments);
    return run_all(arguments);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
