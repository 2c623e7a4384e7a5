#include "cli/stack_text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string_view>
#include <utility>

#include "core/text.h"
#include "launch/describe.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using detail::concat;
using detail::hex;
using Frame = detail::ProcessStacks::Frame;

std::vector<std::string> output_lines(const std::string& command) {
  std::string text;
  auto* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::array<char, 4096> buffer{};
  while (const auto got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), got);
  }
  ::pclose(pipe);
  std::vector<std::string> lines;
  for (std::size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos;
       at = end + 1) {
    lines.push_back(text.substr(at, end - at));
  }
  return lines;
}

/// Removes the parts of "main at /home/user/train.cpp:42 (discriminator 3)" that say little.
std::string shortened(std::string line) {
  if (const auto at = line.find(" (discriminator"); at != std::string::npos) line.resize(at);
  const auto at = line.rfind(" at ");
  if (at == std::string::npos) return line;
  const auto function = line.substr(0, at);
  const auto place = fs::path(line.substr(at + 4)).filename().string();
  return place.ends_with('?') ? function : concat(function, " at ", place);
}

std::string_view state_name(char state) {
  switch (state) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping";
    case 'D':
      return "in the kernel";
    case 'T':
    case 't':
      return "stopped";
    default:
      return "state unknown";
  }
}

/// The functions at addresses of programs and libraries.
class Symbols {
 public:
  /// Reads each file once.
  explicit Symbols(const std::vector<Frame>& frames);
  /// "load_batch() at train.cpp:42 (train)"; "train+0x12ab" if the function is not known.
  std::string text(const Frame& frame) const;

 private:
  std::map<std::pair<std::string, std::uint64_t>, std::string> functions_;
};

Symbols::Symbols(const std::vector<Frame>& frames) {
  std::map<std::string, std::vector<std::uint64_t>> addresses;
  for (const auto& frame : frames) {
    if (!frame.file.empty()) addresses[frame.file].push_back(frame.address);
  }
  for (auto& [file, of_file] : addresses) {
    std::error_code absent;
    if (!fs::is_regular_file(file, absent)) continue;
    std::ranges::sort(of_file);
    of_file.erase(std::ranges::unique(of_file).begin(), of_file.end());
    auto command = concat("timeout 30 addr2line -Cfpe ", launch::quoted(file));
    for (const auto address : of_file) command += concat(" 0x", hex(address));
    const auto lines = output_lines(concat(command, " 2>/dev/null"));
    if (lines.size() != of_file.size()) continue;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (!lines[i].starts_with("??")) functions_[{file, of_file[i]}] = shortened(lines[i]);
    }
  }
}

std::string Symbols::text(const Frame& frame) const {
  const auto file = fs::path(frame.file).filename().string();
  const auto found = functions_.find({frame.file, frame.address});
  if (found != functions_.end()) return concat(found->second, " (", file, ')');
  return concat(file, file.empty() ? "0x" : "+0x", hex(frame.address));
}

}  // namespace

std::vector<std::string> stack_lines(const detail::ProcessStacks::Thread& thread,
                                     std::size_t most_frames) {
  // A thread that has answered was running the handler.
  const auto state = thread.has_answered ? "" : concat(", ", state_name(thread.state));
  std::vector<std::string> lines{concat("thread ", thread.id, ' ', thread.name, state,
                                        thread.has_answered ? ":" : ": did not answer")};
  auto frames = thread.frames;
  const bool is_whole = frames.size() <= most_frames;
  if (!is_whole) frames.resize(most_frames);
  const Symbols symbols(frames);
  for (std::size_t i = 0; i < frames.size(); ++i) {
    lines.push_back(concat("  #", i, ' ', symbols.text(frames[i])));
  }
  if (!is_whole) lines.push_back(concat("  … ", thread.frames.size() - most_frames, " more"));
  return lines;
}

}  // namespace lockstep::cli
