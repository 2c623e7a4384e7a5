#include <algorithm>
#include <cmath>
#include <iomanip>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_content.h"
#include "comm/communicator.h"
#include "core/environment.h"
#include "core/system/files.h"
#include "core/text.h"
#include "formats/safetensors.h"
#include "group/gather.h"
#include "lockstep/checkpoint.h"
#include "lockstep/error.h"
#include "lockstep/group.h"

namespace lockstep::inline v0_2 {

namespace {

using detail::concat;

constexpr std::string_view name_prefix = "checkpoint-";
constexpr std::string_view name_suffix = ".safetensors";
constexpr int name_digits = 6;

/// Reads a file and compares its digests.
void verify(const std::filesystem::path& path) {
  const safetensors::Reader reader(path);
  if (!reader.header().checked)
    throw CheckpointError(concat(path.string(), ": header: expected digests, found none"));
  for (const safetensors::Entry& entry : reader.header().entries) {
    const at::Tensor values = safetensors::empty_for(entry, path.string());
    reader.read(entry, safetensors::writable_bytes_of(values));
  }
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::filesystem::path folder, Keep keep)
    : folder_(std::move(folder)), keep_(keep) {
  if (keep.last == 0) throw InvalidArgument("CheckpointFolder: got last = 0, expected at least 1");
}

std::filesystem::path CheckpointFolder::path_of(std::int64_t number) const {
  return folder_ /
         concat(name_prefix, std::setfill('0'), std::setw(name_digits), number, name_suffix);
}

std::set<std::int64_t> CheckpointFolder::numbers() const {
  std::set<std::int64_t> found;
  std::error_code error;
  if (!std::filesystem::exists(folder_, error) && !error) return found;
  // A range-based loop would throw instead of setting the error code.
  for (std::filesystem::directory_iterator entry(folder_, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(name_prefix) || !name.ends_with(name_suffix)) continue;
    const auto digits = std::string_view(name).substr(name_prefix.size());
    const auto number =
        detail::parse_number<std::int64_t>(digits.substr(0, digits.size() - name_suffix.size()));
    // Ignores names that this class does not write, such as those with other digits.
    if (number.value_or(0) > 0 && path_of(*number).filename() == entry->path().filename())
      found.insert(*number);
  }
  if (error) throw CheckpointError(concat(folder_.string(), ": cannot list: ", error.message()));
  return found;
}

std::optional<std::int64_t> CheckpointFolder::best_of(const std::set<std::int64_t>& numbers) const {
  std::optional<std::int64_t> best;
  std::optional<double> highest;
  for (const std::int64_t number : numbers) {
    if (damaged_.contains(number)) continue;
    try {
      const auto score = detail::score_of(safetensors::Reader(path_of(number)).header().metadata);
      if (score && !std::isnan(*score) && (!highest || *score > *highest)) {
        best = number;
        highest = score;
      }
    } catch (const CheckpointError&) {
      // A damaged file is not the best. load_newest() reports the error.
    }
  }
  return best;
}

void CheckpointFolder::prune() const {
  const std::set<std::int64_t> all = numbers();
  const std::optional<std::int64_t> best = keep_.best ? best_of(all) : std::nullopt;
  std::size_t kept = 0;
  for (auto number = all.rbegin(); number != all.rend(); ++number) {
    if (kept < keep_.last) {
      kept += damaged_.contains(*number) ? 0 : 1;
    } else if (*number != best) {
      std::error_code error;
      std::filesystem::remove(path_of(*number), error);
      if (error)
        throw CheckpointError(
            concat(path_of(*number).string(), ": cannot remove: ", error.message()));
    }
  }
}

void CheckpointFolder::lock_here() {
  detail::create_folders(folder_);
  if (lock_ != nullptr) return;
  try {
    lock_ = std::make_shared<detail::FolderLock>(folder_, "checkpoints");
  } catch (const Error& lock_error) {
    throw CheckpointError(lock_error.what());
  }
}

void CheckpointFolder::lock(const Group& group) {
  all_or_none(group, [&] {
    if (group.rank() == 0) lock_here();
  });
}

std::filesystem::path CheckpointFolder::next_path(const Group& group) {
  const SourceScope scope(group.host().communicator(), {.content = Source::Content::checkpoint});
  std::string number;
  all_or_none(group, [&] {
    if (group.rank() != 0) return;
    lock_here();
    for (const std::int64_t used : numbers()) last_ = std::max(last_, used);
    number = std::to_string(++last_);
  });
  return path_of(std::stoll(detail::gather(number, group)[0]));
}

std::filesystem::path CheckpointFolder::save(const Checkpoint& checkpoint,
                                             const CheckpointMeta& meta, const Group& group) {
  const SourceScope scope(group.host().communicator(), {.content = Source::Content::checkpoint});
  const std::filesystem::path path = next_path(group);
  checkpoint.save(path, meta, group);
  all_or_none(group, [&] {
    if (group.rank() == 0) prune();
  });
  return path;
}

std::filesystem::path CheckpointFolder::save_behind(CheckpointWriter& writer,
                                                    const Checkpoint& checkpoint,
                                                    const CheckpointMeta& meta) {
  writer.wait();  // next_path() must see the file of the previous save
  const std::filesystem::path path = next_path(writer.group());
  writer.save(checkpoint, path, meta, [folder = *this] { folder.prune(); });
  return path;
}

std::optional<Resumed> CheckpointFolder::load_newest(const Checkpoint& checkpoint,
                                                     const Group& group) {
  const SourceScope scope(group.host().communicator(), {.content = Source::Content::checkpoint});
  std::string chosen;
  std::string skipped;
  all_or_none(group, [&] {
    if (group.rank() != 0) return;
    const std::set<std::int64_t> all = numbers();
    for (auto number = all.rbegin(); number != all.rend() && chosen.empty(); ++number) {
      try {
        verify(path_of(*number));
        chosen = std::to_string(*number);
      } catch (const CheckpointError& error) {
        damaged_.insert(*number);
        skipped += concat(skipped.empty() ? "" : "; ", "skipped ", error.what());
      }
    }
    if (chosen.empty() && !skipped.empty())
      throw CheckpointError(concat(folder_.string(), ": found no undamaged checkpoint: ", skipped));
  });
  chosen = detail::gather(chosen, group)[0];
  if (chosen.empty()) return std::nullopt;
  skipped = detail::gather(skipped, group)[0];
  Resumed resumed = checkpoint.load(path_of(std::stoll(chosen)), group);
  if (!skipped.empty())
    resumed.changes = skipped + (resumed.changes.empty() ? "" : "; " + resumed.changes);
  return resumed;
}

std::optional<std::filesystem::path> CheckpointFolder::newest() const {
  const std::set<std::int64_t> all = numbers();
  return all.empty() ? std::nullopt : std::optional(path_of(*all.rbegin()));
}

std::optional<std::filesystem::path> CheckpointFolder::best() const {
  const std::optional<std::int64_t> best = best_of(numbers());
  return best ? std::optional(path_of(*best)) : std::nullopt;
}

}  // namespace lockstep
