#include "core/error_record.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/environment.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// How the backtrace of a c10::Error begins.
constexpr std::string_view backtrace_begin = "\nException raised from ";

/// One rank's part of the memfd; zeros if the rank wrote no record.
struct Slot {
  std::uint32_t length;  ///< of the text, written last
  std::uint32_t operation_length;
  std::int32_t rank;
  ErrorKind kind;
  bool repeats;
  bool raised;
  std::array<char, 81> operation;
  std::array<char, 4000> text;
};
static_assert(sizeof(Slot) == 4096);

struct InheritedFile {
  int fd = -1;  ///< none
  int rank = 0;
};

InheritedFile inherited_file() noexcept {
  try {
    const auto& environment = Environment::get();
    if (!environment.error_fd || !environment.rank) return {};
    return {.fd = *environment.error_fd, .rank = *environment.rank};
  } catch (const Error&) {
    return {};  // invalid variables: init() reports them
  }
}

off_t place_of(int rank) { return static_cast<off_t>(rank) * static_cast<off_t>(sizeof(Slot)); }

}  // namespace

std::string_view without_backtrace(std::string_view text) noexcept {
  return text.substr(0, text.find(backtrace_begin));
}

ErrorRecord record_of(const std::exception& error) {
  ErrorRecord record{.text = std::string(without_backtrace(error.what()))};
  if (const auto* known = dynamic_cast<const Error*>(&error)) {
    record.kind = known->kind();
    record.rank = known->rank();
    record.repeats = !known->cause().empty();
    record.operation = known->operation();
  }
  return record;
}

ErrorRecords::ErrorRecords()
    : file_(::memfd_create("lockstep-errors", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  // No rank can remove the records of the others.
  if (!file_ || ::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    throw CommError(
        concat("the launcher cannot create a memfd for the ranks' errors: ", std::strerror(errno)));
  }
}

std::optional<ErrorRecord> ErrorRecords::of(int rank) const {
  Slot slot{};
  if (::pread(file_.get(), &slot, sizeof slot, place_of(rank)) < 0 || slot.length == 0) return {};
  const auto length = std::min<std::size_t>(slot.length, slot.text.size());
  const auto operation_length = std::min<std::size_t>(slot.operation_length, slot.operation.size());
  return ErrorRecord{.kind = slot.kind,
                     .rank = slot.rank,
                     .repeats = slot.repeats,
                     .raised = slot.raised,
                     .text = {slot.text.data(), length},
                     .operation = {slot.operation.data(), operation_length}};
}

void leave_error_record(const ErrorRecord& record) noexcept {
  const auto [fd, rank] = inherited_file();
  if (fd < 0) return;
  Slot slot{};
  const auto length = std::min(record.text.size(), slot.text.size());
  slot.kind = record.kind;
  slot.rank = record.rank;
  slot.repeats = record.repeats;
  slot.raised = record.raised;
  slot.operation_length = static_cast<std::uint32_t>(
      record.operation.copy(slot.operation.data(), slot.operation.size()));
  std::memcpy(slot.text.data(), record.text.data(), length);
  if (::pwrite(fd, &slot, sizeof slot, place_of(rank)) != sizeof slot) return;
  slot.length = static_cast<std::uint32_t>(length);
  [[maybe_unused]] const auto written =
      ::pwrite(fd, &slot.length, sizeof slot.length, place_of(rank));
}

void keep_error_file() noexcept {
  if (const auto [fd, rank] = inherited_file(); fd >= 0) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
}

}  // namespace lockstep::detail
