#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cli/command_line.h"
#include "core/environment.h"
#include "core/text.h"
#include "launch/launch.h"
#include "launch/plan.h"
#include "launch/remote_nodes.h"
#include "launch/system.h"
#include "lockstep/error.h"

namespace lockstep::cli {
namespace {

struct RunArguments {
  launch::Options options;
  launch::NodeOptions nodes;
  std::string hosts;
  std::string host_file;
  std::string spares;
  std::optional<int> least;
  launch::RemoteOptions remote{
      .ssh =
          "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 "
          "-o ServerAliveCountMax=3 -T"};
  bool reads_stdin = false;
  bool join_by_stdin = false;
  bool end_with_stdin = false;
  bool dry_run = false;
};

/// Adds an option in seconds.
void add_seconds(CLI::App* command, const char* name, std::chrono::milliseconds& value,
                 const char* text) {
  const auto take = [&value](double seconds) {
    value = std::chrono::milliseconds(static_cast<long>(seconds * 1000));
  };
  in_range(command->add_option_function<double>(name, take, text), 0, 1e6)
      ->type_name("SECONDS")
      ->default_str(detail::concat(static_cast<double>(value.count()) / 1000));
}

/// The value of -n: a number, or "gpus".
void take_ranks(const std::string& text, launch::Options& options) {
  options.rank_per_gpu = text == "gpus";
  if (options.rank_per_gpu) return;
  const auto number = detail::parse_number<int>(text);
  if (!number) {
    throw InvalidArgument(detail::concat("run: --ranks: got '", text,
                                         "', expected a number, or gpus for one rank on each GPU",
                                         text == "p" ? "; write -n 2 for -np 2" : ""));
  }
  options.ranks = *number;
}

/// The given options of the command that hold on every host, as "--name=value". An empty value is
/// the default: after "--name=", the next word would be the value.
std::vector<std::string> options_of_all_hosts(const CLI::App& command) {
  std::vector<std::string> words;
  for (const auto* option : command.get_options()) {
    if (option->get_lnames().empty()) continue;
    const auto& name = option->get_lnames().front();
    constexpr std::array own{"hosts",  "hostfile",        "spare",     "ssh",
                             "export", "remote-lockstep", "standalone"};
    if (std::ranges::count(own, name) > 0) continue;
    for (const auto& value : option->results()) {
      if (!value.empty()) words.push_back(detail::concat("--", name, '=', value));
    }
  }
  return words;
}

/// The hosts of --hosts or --hostfile.
std::vector<launch::HostRanks> hosts_of(const RunArguments& arguments) {
  if (arguments.host_file.empty()) return launch::parse_hosts(arguments.hosts, "--hosts");
  std::ifstream file(arguments.host_file);
  std::string text;
  std::getline(file, text, '\0');
  if (!file.is_open() || file.bad()) {
    throw InvalidArgument(detail::concat("run: --hostfile: cannot read '", arguments.host_file,
                                         "', expected lines such as a:2"));
  }
  return launch::parse_hosts(text, "--hostfile");
}

/// Gives the ranks of this host the variables of -x; RemoteNodes sends them to the others.
void set_exports(const std::vector<std::string>& exports) {
  for (const auto& word : exports) {
    const auto equals = word.find('=');
    const auto name = word.substr(0, equals);
    if (name.empty() || (equals == std::string::npos && ::getenv(name.c_str()) == nullptr)) {
      throw InvalidArgument(detail::concat("run: --export: got '", word,
                                           "', expected NAME=VALUE, or NAME of a variable that is "
                                           "set here"));
    }
    if (equals != std::string::npos) ::setenv(name.c_str(), word.c_str() + equals + 1, 1);
  }
}

/// Takes --spare and --min-hosts.
void check_lost_hosts(RunArguments& arguments, bool has_hosts) {
  auto& node = arguments.options.node;
  if (!arguments.spares.empty()) {
    if (!has_hosts) {
      throw InvalidArgument("run: got --spare without --hosts or --hostfile, expected either");
    }
    const auto spares = launch::parse_hosts(arguments.spares, "--spare");
    arguments.remote.spares.assign(spares.begin(), spares.end());
  }
  if (!arguments.least) return;
  node.least = *arguments.least;
  if (node.least < 1 || node.least > node.count) {
    throw InvalidArgument(detail::concat("run: --min-hosts: got ", node.least, ", expected 1 to ",
                                         node.count, ", the number of hosts"));
  }
}

int run(RunArguments& arguments, const CLI::App& command, bool ranks_given) {
  launch::open_standard_descriptors();
  if (arguments.join_by_stdin) launch::become_remote_node();
  auto& options = arguments.options;
  std::tie(options.program, options.arguments) = program_words(command, "-n 2");
  arguments.remote.environment = launch::inherited_environment();
  set_exports(arguments.remote.exports);
  const auto environment = launch::inherited_environment();
  std::vector<launch::HostRanks> hosts;
  if (command.count("--hosts") + command.count("--hostfile") > 0) {
    if (ranks_given || command.count("--nnodes") > 0) {
      throw InvalidArgument(
          "run: got --hosts or --hostfile with -n or --nnodes, expected either: the hosts have "
          "numbers of ranks of their own");
    }
    hosts = hosts_of(arguments);
    options.node = launch::first_of(hosts, arguments.host_file.empty() ? "--hosts" : "--hostfile");
    options.node.shows_host = hosts.size() > 1;
    options.reads_stdin = hosts.size() == 1 || arguments.reads_stdin;
    options.ranks = hosts.front().ranks;
    ranks_given = true;
  } else {
    options.node = launch::find_place(arguments.nodes, environment);
    options.node.remote = options.node.shows_host = arguments.end_with_stdin;
  }
  ::unsetenv("LOCKSTEP_NODE_TOKEN");  // ranks have a token of their own
  check_lost_hosts(arguments, !hosts.empty());
  const auto ranks = launch::ranks_of_environment(environment);
  if (!ranks_given && !options.gpus && !ranks.empty()) {
    take_ranks(ranks, options);
    ranks_given = true;
  }
  if (!ranks_given && !options.gpus) {
    throw InvalidArgument("run: how many ranks? as in: lockstep run -n 2 …");
  }
  if (!ranks_given) options.rank_per_gpu = true;
  const auto plan = launch::make_plan(options);
  if (arguments.dry_run) {
    std::cout << launch::describe(plan);
    return 0;
  }
  if (options.verbose) std::cerr << launch::describe(plan) << std::endl;
  if (arguments.end_with_stdin) launch::end_with_stdin();
  if (hosts.size() < 2) return launch::run(plan);
  auto& remote = arguments.remote;
  if (remote.lockstep.empty()) remote.lockstep = std::filesystem::canonical("/proc/self/exe");
  remote.run = options_of_all_hosts(command);
  launch::RemoteNodes others(hosts, remote, options);
  return launch::run(plan, &others);
}

}  // namespace

void add_run(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "run", "Start a program as ranks of one world, on this host or on several");
  const auto arguments = std::make_shared<RunArguments>();
  auto& options = arguments->options;
  command->footer("As in: lockstep run -n 2 --log-dir logs ./program --its-option");
  auto* ranks =
      command
          ->add_option_function<std::string>(
              "-n,--ranks",
              [arguments](const std::string& text) { take_ranks(text, arguments->options); },
              "Number of ranks on this host, or gpus: one rank for each GPU (required; default: "
              "gpus with --gpus, else PET_NPROC_PER_NODE)")
          ->type_name("RANKS");
  auto& nodes = arguments->nodes;
  add_value(command, "--nnodes", nodes.count, "NODES",
            "Number of hosts of the world, each with a launcher (default: that of PET_NNODES, "
            "WORLD_SIZE of a PyTorchJob, or SLURM; else 1)");
  add_value(command, "--node-rank", nodes.number, "NUMBER",
            "Number of this host among them, from 0 (default: the environment's)");
  add_value(command, "--master", nodes.master, "HOST:PORT",
            "Name or address of host 0, and the TCP port on which its launcher listens (default: "
            "the environment's; port 29500)");
  add_value(command, "--hosts", arguments->hosts, "LIST",
            "This host and others, each with its number of ranks, as a:2,b:2. The launchers of the "
            "others are started by ssh");
  add_value(command, "--hostfile", arguments->host_file, "FILE",
            "The same from a file with lines 'a:2' or 'a slots=2'")
      ->excludes("--hosts");
  add_value(command, "--spare", arguments->spares, "LIST",
            "Hosts that replace unreachable ones and, with --max-restarts, lost ones");
  add_value(command, "--min-hosts", arguments->least, "NUMBER",
            "Least hosts of a restart, which leaves out lost ones (default: all)");
  add_value(command, "--ssh", arguments->remote.ssh, "COMMAND",
            "Command in place of ssh, which gets a host and a shell command");
  add_value(command, "--remote-lockstep", arguments->remote.lockstep, "FILE",
            "Path of lockstep on the other hosts (default: this one's)");
  add_value(command, "-x,--export", arguments->remote.exports, "NAME[=VALUE]",
            "Variable for the ranks of all hosts, beside LOCKSTEP_*, OMP_* and LD_LIBRARY_PATH")
      ->allow_extra_args(false);
  command->add_flag("--stdin", arguments->reads_stdin,
                    "Let rank 0 of several --hosts read this launcher's stdin (default: none)");
  command->add_flag("--join-by-stdin", arguments->join_by_stdin)->group("");
  command->add_flag("--end-with-stdin", arguments->end_with_stdin)->group("");
  command->add_flag("--standalone", nodes.standalone,
                    "Start a world of this host, also where the environment describes several");
  add_value(command, "--gpus", options.gpus, "LIST",
            "GPUs of the ranks, as 0,1: for CUDA_VISIBLE_DEVICES. Rank 0 uses the first (default: "
            "CUDA_VISIBLE_DEVICES, else all)");
  command
      ->add_flag("--share-gpus{1}", options.share_gpus,
                 "Allow more ranks than GPUs. Ranks share GPUs in turn and exchange through "
                 "host memory; with --share-gpus=nccl by NCCL 2.30 or newer")
      ->check(CLI::IsMember({"1", "nccl"}).description(""));
  add_value(command, "--device", options.device, "DEVICE",
            "Device on which ranks train, for programs that leave it to init(): auto, cpu or cuda "
            "(default: LOCKSTEP_DEVICE, else auto)")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}).description(""));
  add_switch(command, "--bind", options.bind, {"cores", "none"}, "cores",
             "Bind each rank to its own cores, or not: cores or none (default: cores, if there are "
             "as many logical CPUs as ranks)");
  add_switch(command, "--freed-memory", options.keep_freed_memory, {"keep", "return"}, "keep",
             "Keep memory that a rank frees in its process, or return blocks of 1 MiB and more to "
             "the kernel: keep or return (default: keep)");
  add_switch(command, "--huge-pages", options.huge_pages, {"use", "leave"}, "use",
             "Ask the kernel for transparent huge pages for a rank's heap, or leave that to glibc "
             "and the kernel: use or leave (default: use)");
  add_switch(command, "--denormals", options.flush_denormals, {"keep", "flush"}, "flush",
             "Replace floats below 1.2e-38 by 0, or keep them as IEEE 754 says: flush or keep "
             "(default: flush)");
  constexpr double longest = 1e9;
  add_number(command, "--timeout", options.timeout, 1e-3, longest, "SECONDS",
             "Longest wait of a rank for other ranks (default: LOCKSTEP_TIMEOUT, else 600)");
  add_number(
      command, "--stall-warning", options.stall_warning, 0, longest, "SECONDS",
      "Time of a wait after which a rank or launcher reports who is missing, and after which "
      "the launcher reports a rank that goes on when it has left the world; 0: never "
      "(default: LOCKSTEP_STALL_WARNING, else 30)");
  add_value(
      command, "--interface", options.interface, "NAME",
      "Network interface by which hosts watch one another (default: LOCKSTEP_INTERFACE, else all)");
  add_seconds(command, "--grace", options.grace,
              "Time from SIGTERM to SIGKILL, for ranks that save their state: after a failure, "
              "and, at least 5, when the launcher gets SIGTERM, SIGINT or SIGHUP");
  command->add_flag_callback(
      "--no-forward-signals", [arguments] { arguments->options.forward_signals = false; },
      "Do not send SIGUSR1 and SIGUSR2 on to the ranks, for a batch system that sends them to "
      "every process itself (default: send them)");
  add_number(command, "--linger", options.linger, 0, longest, "SECONDS",
             "Longest time that a rank may go on after it left the world or all other ranks ended "
             "(default: no limit)");
  add_number(command, "--max-restarts", options.max_restarts, 0, longest, "TIMES",
             "Largest number of times that all ranks are started again after a failure");
  add_seconds(command, "--restart-delay", options.restart_delay,
              "Time from a failure to the restart. It doubles with each restart, up to 60, and "
              "begins anew after an attempt that lasted 60");
  command->add_flag("-q,--quiet", options.quiet, "Print rank 0's output only");
  add_value(command, "--log-dir", options.log_directory, "DIR",
            "Folder for what each rank prints: rank-0.out, rank-0.err, …; in attempt-0, … with "
            "--max-restarts. It is not the program's run log for lockstep report (default: none)");
  command->add_flag("-v,--verbose", options.verbose,
                    "Print the configuration and each rank's environment before the start");
  command->add_flag("--dry-run", arguments->dry_run, "Print the same and start nothing");

  add_program(command);
  command->callback([arguments, ranks, command, &exit_code] {
    exit_code = run(*arguments, *command, ranks->count() > 0);
  });
}

}  // namespace lockstep::cli
