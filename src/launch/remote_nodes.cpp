#include "launch/remote_nodes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <utility>

#include "comm/control/address.h"
#include "comm/control/handshake.h"
#include "core/environment.h"
#include "core/signal_safe_text.h"
#include "core/system/process.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "launch/job/console.h"
#include "launch/job/nodes.h"
#include "launch/job/rank_process.h"
#include "launch/system.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;
using Clock = std::chrono::steady_clock;

/// Least time in which ssh and a launcher end after a job that was ended.
constexpr auto ending_time = std::chrono::seconds(5);

bool is_this_host(const std::string& name) {
  const auto own = detail::host_name();
  if (name == "localhost" || name == own || name == own.substr(0, own.find('.'))) return true;
  for (const auto& interface : control::interfaces()) {
    for (const auto& address : interface.addresses) {
      if (address.host() == name) return true;
    }
  }
  return false;
}

/// The description for a launcher: the number of its bytes, the working directory, variables, an
/// empty text, and the words after "lockstep".
std::string description(const RemoteOptions& remote, const Options& options, std::size_t node,
                        int ranks) {
  std::string text;
  const auto add = [&](const std::string& word) { text += word + '\0'; };
  add(std::filesystem::current_path());
  for (const auto& [name, value] : inherited_environment()) {
    const auto exported = [&](const std::string& word) {
      return word.substr(0, word.find('=')) == name;
    };
    const bool sent = name.starts_with("LOCKSTEP_") || name.starts_with("NCCL_") ||
                      name.starts_with("OMP_") || name == "LD_LIBRARY_PATH" ||
                      std::ranges::any_of(remote.exports, exported);
    const bool of_host =
        name == "LOCKSTEP_TOKEN_FILE" || name == "LOCKSTEP_HOST" || name == "NCCL_HOSTID";
    if (sent && !of_host) add(concat(name, '=', value));
  }
  add(concat("LOCKSTEP_NODE_TOKEN=", options.node.token));
  add("");
  add("run");
  for (const auto& word : remote.run) add(word);
  add("--end-with-stdin");
  add(concat("--nnodes=", options.node.count));
  add(concat("--node-rank=", node));
  add(concat("--master=[", options.node.host, "]:", options.node.port));
  add(concat("--ranks=", ranks));
  add("--");
  add(options.program);
  for (const auto& word : options.arguments) add(word);
  return concat(text.size(), '\n', text);
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return std::vector<std::string>(std::istream_iterator<std::string>(in), {});
}

}  // namespace

std::vector<HostRanks> parse_hosts(const std::string& text, std::string_view named_by) {
  std::string entries;
  for (const auto& line : detail::lines_in(text)) entries += line.substr(0, line.find('#')) + ',';
  std::vector<HostRanks> hosts;
  for (const auto& entry : detail::lines_in(entries, ',')) {
    auto words = words_of(entry);
    if (words.empty()) continue;
    constexpr std::string_view slots = "slots=";
    const auto colon = words[0].rfind(':');
    const bool has_slots = words.size() == 2 && words[1].starts_with(slots);
    const auto number = has_slots ? words[1].substr(slots.size())
                        : words.size() == 1 && colon != std::string::npos
                            ? words[0].substr(colon + 1)
                            : "";
    const int ranks = detail::parse_number<int>(number).value_or(0);
    if (ranks < 1) {
      throw InvalidArgument(
          concat("run: ", named_by, ": got '", entry,
                 "', expected HOST:RANKS, as a:2, or in a file also 'a slots=2'"));
    }
    hosts.push_back({has_slots ? words[0] : words[0].substr(0, colon), ranks});
  }
  return hosts;
}

NodePlace first_of(const std::vector<HostRanks>& hosts, std::string_view named_by) {
  if (hosts.empty() || !is_this_host(hosts.front().name)) {
    throw InvalidArgument(
        concat("run: ", named_by, ": got ",
               hosts.empty() ? "no host" : concat("first host ", hosts.front().name),
               ", expected this host, ", detail::host_name(), ", first"));
  }
  if (hosts.size() == 1) return {};
  const auto& name = hosts.front().name;
  return {.count = static_cast<int>(hosts.size()),
          .host = name == "localhost" ? detail::host_name() : name,
          .port = control::lasting_port(),
          .source = "--hosts",
          .token = control::hexadecimal(control::random_bytes())};
}

RemoteNodes::RemoteNodes(const std::vector<HostRanks>& hosts, RemoteOptions remote,
                         const Options& options)
    : options_(std::move(remote)), job_(options), remotes_(hosts.size() - 1) {
  const auto before = signal(SIGPIPE, SIG_IGN);  // of an ssh that ends at once
  for (std::size_t node = 1; node < hosts.size(); ++node) {
    start(node, hosts[node], [before] { signal(SIGPIPE, before); });
  }
  signal(SIGPIPE, before);
}

void RemoteNodes::start(std::size_t node, const HostRanks& host,
                        const std::function<void()>& in_child) {
  auto pipe = make_pipe();
  auto arguments = words_of(options_.ssh);
  arguments.push_back(host.name);
  arguments.push_back(concat("exec ", detail::quoted(options_.lockstep), " run --join-by-stdin"));
  const auto argv = pointers_to(arguments);
  auto environment = environment_of(options_.environment, {});
  auto variables = pointers_to(environment);
  const pid_t ssh = fork();
  if (ssh < 0) throw_system("start ssh");
  if (ssh == 0) {
    setsid();  // Ctrl-C is for the launchers, which send it on
    in_child();
    environ = variables.data();
    dup2(pipe.read.get(), STDIN_FILENO);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  pipe.read.reset();  // a write after the end of ssh then fails
  auto& started = remotes_[node - 1];
  started = {.host = host.name, .ssh = ssh, .in = std::move(pipe.write)};
  const auto text = description(options_, job_, node, host.ranks);
  // An ssh that still connects reads nothing: this process must not wait for it in the write.
  fcntl(started.in.get(), F_SETPIPE_SZ, static_cast<int>(text.size()));
  detail::write_all(started.in.get(), text.data(), text.size());  // check() names the host
}

RemoteNodes::~RemoteNodes() {
  if (std::uncaught_exceptions() > 0) end_joining();
  const auto until = Clock::now() + ending_time;
  for (auto& remote : remotes_) {
    if (remote.ssh < 0) continue;
    if (!await_end(remote.ssh, until)) kill(remote.ssh, SIGKILL);
    waitpid(remote.ssh, nullptr, 0);
  }
}

void RemoteNodes::end_joining() {
  for (auto& remote : remotes_) remote.in.reset();
}

int RemoteNodes::check(Console& console) {
  int running = 1;
  for (std::size_t node = 1; node <= remotes_.size(); ++node) {
    auto& remote = remotes_[node - 1];
    if (const auto ending = remote.ssh < 0 ? std::nullopt : ending_of(remote.ssh)) {
      remote.end = concat("ssh or the launcher there ended with ", ending->text(),
                          " before all hosts had joined");
      waitpid(remote.ssh, nullptr, 0);
      remote.ssh = -1;
    }
    if (remote.ssh < 0 && !options_.spares.empty()) {
      const auto spare = std::move(options_.spares.front());
      options_.spares.pop_front();
      console.outputs.err.line("", concat("lockstep: host ", spare.name, " replaces host ",
                                          remote.host, ": ", remote.end));
      start(node, spare, [&] { console.signals.restore(); });
    }
    running += remote.ssh >= 0 ? 1 : 0;
  }
  if (running == job_.node.count || (job_.node.least > 0 && running >= job_.node.least)) {
    return running;
  }
  std::string ended;
  for (const auto& remote : remotes_) {
    if (remote.ssh < 0)
      ended += concat(ended.empty() ? "" : "; ", "host ", remote.host, ": ", remote.end);
  }
  throw CommError("run: " + ended);
}

void RemoteNodes::await_ends(const Outcome& outcome, Console::Patience patience, Console& console) {
  const auto begin = Clock::now();
  bool told = false;
  auto until = Clock::time_point::max();
  if (patience) until = Clock::now() + std::max<Clock::duration>(*patience, ending_time);
  for (auto& remote : remotes_) {
    if (remote.ssh < 0) continue;
    while (!ending_of(remote.ssh) && Clock::now() < until) {
      if (!told && Clock::now() - begin > ending_time) {
        told = true;
        console.outputs.err.line("", concat("lockstep: the job is over; ssh to host ", remote.host,
                                            " runs on, as it may still write output"));
      }
      const bool hurried = console.pause(std::chrono::milliseconds(5)).has_value();
      if (hurried) until = std::min(until, Clock::now() + ending_time);
    }
    const auto ending = ending_of(remote.ssh);
    const auto place = concat("the output of host ", remote.host);
    if (!ending) {
      kill(remote.ssh, SIGKILL);
      console.losses.add(place, "ssh had not ended");
    } else if (outcome.code == 0 && ending->failed()) {
      console.losses.add(place, concat("ssh or the launcher there ended with ", ending->text()));
    }
    waitpid(remote.ssh, nullptr, 0);
    remote.ssh = -1;
  }
}

void RemoteNodes::drop(std::span<const int> numbers) {
  for (const int number : numbers) {
    auto& remote = remotes_[static_cast<std::size_t>(number) - 1];
    if (remote.ssh < 0) continue;
    kill(remote.ssh, SIGKILL);
    waitpid(remote.ssh, nullptr, 0);
    remote = {.host = remote.host, .end = "it was lost"};
  }
}

void become_remote_node() {
  const auto read_some = [](char* to, std::size_t bytes) {
    while (bytes > 0) {
      const auto count = read(STDIN_FILENO, to, bytes);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) throw InvalidArgument("run: --join-by-stdin: stdin has no description");
      to += count;
      bytes -= static_cast<std::size_t>(count);
    }
  };
  std::string size;
  for (char digit = 0; read_some(&digit, 1), digit != '\n';) size += digit;
  std::string text(detail::parse_number<std::size_t>(size).value_or(0), '\0');
  read_some(text.data(), text.size());
  std::istringstream fields(text);
  std::string folder;
  std::getline(fields, folder, '\0');
  if (chdir(folder.c_str()) != 0) {
    throw InvalidArgument(concat("run: host ", detail::host_name(),
                                 " cannot use the working directory ", folder, ": ",
                                 std::strerror(errno)));
  }
  for (std::string entry; std::getline(fields, entry, '\0') && !entry.empty();) {
    const auto equals = entry.find('=');
    setenv(entry.substr(0, equals).c_str(), entry.c_str() + equals + 1, 1);
  }
  std::vector<std::string> words{"lockstep"};
  for (std::string word; std::getline(fields, word, '\0');) words.push_back(word);
  // By its own path: by that of /proc the process would be named exe.
  execv(std::filesystem::canonical("/proc/self/exe").c_str(), pointers_to(words).data());
  throw_system("execute itself");
}

}  // namespace lockstep::launch
