#include "launch/remote_nodes.h"

#include <fcntl.h>
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
#include <sstream>
#include <thread>
#include <utility>

#include "comm/control/address.h"
#include "comm/control/token.h"
#include "core/environment.h"
#include "core/system/process.h"
#include "core/system/topology.h"
#include "core/text.h"
#include "launch/describe.h"
#include "launch/job/children.h"
#include "launch/job/nodes.h"
#include "launch/job/output.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;

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
    const bool sent = name.starts_with("LOCKSTEP_") || name.starts_with("OMP_") ||
                      name == "LD_LIBRARY_PATH" || std::ranges::count(remote.exports, name) > 0;
    if (sent && name != "LOCKSTEP_TOKEN_FILE") add(concat(name, '=', value));
  }
  for (const auto& word : remote.exports) {
    if (word.find('=') != std::string::npos) add(word);
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
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

}  // namespace

std::vector<HostRanks> parse_hosts(std::string text, std::string_view named_by) {
  std::ranges::replace(text, ',', '\n');
  std::istringstream lines(text);
  std::vector<HostRanks> hosts;
  for (std::string line; std::getline(lines, line);) {
    auto words = words_of(line.substr(0, line.find('#')));
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
          concat("run: ", named_by, ": got '", line,
                 "', expected HOST:RANKS, as a:2, or in a file also 'a slots=2'"));
    }
    hosts.push_back({has_slots ? words[0] : words[0].substr(0, colon), ranks});
  }
  if (hosts.empty() || !is_this_host(hosts.front().name)) {
    throw InvalidArgument(
        concat("run: ", named_by, ": got ",
               hosts.empty() ? "no host" : concat("first host ", hosts.front().name),
               ", expected this host, ", detail::host_name(), ", first"));
  }
  return hosts;
}

NodePlace first_of(const std::vector<HostRanks>& hosts) {
  const auto& name = hosts.front().name;
  return {.count = static_cast<int>(hosts.size()),
          .host = name == "localhost" ? detail::host_name() : name,
          .port = control::Address::local(listen_anywhere().get()).port(),
          .source = "--hosts",
          .token = control::hexadecimal(control::random_token())};
}

RemoteNodes::RemoteNodes(const std::vector<HostRanks>& hosts, const RemoteOptions& remote,
                         const Options& options) {
  const auto before = signal(SIGPIPE, SIG_IGN);  // of an ssh that ends at once
  for (std::size_t node = 1; node < hosts.size(); ++node) {
    auto pipe = make_pipe();
    const auto words = words_of(remote.ssh);
    StringArray arguments;
    for (const auto& word : words) arguments.add(word);
    arguments.add(hosts[node].name);
    arguments.add(concat("exec ", quoted(remote.lockstep), " run --join-by-stdin"));
    char* const* argv = arguments.get();
    const pid_t ssh = fork();
    if (ssh < 0) throw_system("start ssh");
    if (ssh == 0) {
      setsid();  // Ctrl-C is for the launchers, which send it on
      signal(SIGPIPE, before);
      dup2(pipe.read.get(), STDIN_FILENO);
      execvp(argv[0], argv);
      _exit(127);
    }
    remotes_.push_back({hosts[node].name, ssh, std::move(pipe.write)});
    const auto text = description(remote, options, node, hosts[node].ranks);
    for (std::size_t sent = 0; sent < text.size();) {
      const auto count = write(remotes_.back().in.get(), text.data() + sent, text.size() - sent);
      if (count < 0 && errno != EINTR) break;  // check() names the host
      sent += count < 0 ? 0 : static_cast<std::size_t>(count);
    }
  }
  signal(SIGPIPE, before);
}

RemoteNodes::~RemoteNodes() {
  // The launchers of a job that has not begun wait for others. Their stdin ends that.
  if (std::uncaught_exceptions() > 0) {
    for (auto& remote : remotes_) remote.in.reset();
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  for (auto& remote : remotes_) {
    if (!await_end(remote.ssh, until)) kill(remote.ssh, SIGKILL);
    waitpid(remote.ssh, nullptr, 0);
  }
}

void RemoteNodes::check() const {
  for (const auto& remote : remotes_) {
    if (const auto ending = ending_of(remote.ssh)) {
      throw CommError(concat("run: host ", remote.host, ": ssh or the launcher there ended with ",
                             ending->text(), " before all hosts had joined"));
    }
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
  StringArray words;
  words.add("lockstep");
  for (std::string word; std::getline(fields, word, '\0');) words.add(word);
  execv("/proc/self/exe", words.get());
  throw_system("execute itself");
}

void end_with_stdin() {
  std::thread([] {
    const detail::SignalsBlocked blocked;
    char ignored = 0;
    for (ssize_t count = 1; count > 0 || (count < 0 && errno == EINTR);) {
      count = read(STDIN_FILENO, &ignored, 1);
    }
    for (;;) {
      kill(getpid(), SIGTERM);
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
  }).detach();
}

}  // namespace lockstep::launch
