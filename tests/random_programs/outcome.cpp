#include "tests/random_programs/outcome.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <istream>
#include <ostream>
#include <sstream>
#include <string_view>

namespace lockstep::random_programs {
namespace {

template <class... Args>
std::string text(const Args&... args) {
  std::ostringstream out;
  out.precision(17);
  (out << ... << args);
  return out.str();
}

/// The values from first on, of which a few say enough.
std::string text_of(const Values& values, std::size_t first) {
  if (!values) return "undefined";
  const auto last = std::min(values->size(), first + 4);
  std::string all = first > 0 ? "[…" : "[";
  for (auto i = first; i < last; ++i) all += text(all.size() > 1 ? " " : "", (*values)[i]);
  return all + (last < values->size() ? " …]" : "]");
}

/// The first element that differs most; 0 where there is none.
std::size_t largest_difference(const Values& got, const Values& expected) {
  std::size_t found = 0;
  if (!got || !expected || got->size() != expected->size()) return found;
  const auto at = [&](std::size_t i) { return std::abs((*got)[i] - (*expected)[i]); };
  for (std::size_t i = 1; i < got->size(); ++i) {
    if (at(i) > at(found)) found = i;
  }
  return found;
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

bool is_near(const Values& got, const Values& expected) {
  if (!got || !expected) return !got && !expected;
  if (got->size() != expected->size()) return false;
  std::vector<double> difference;
  for (std::size_t i = 0; i < got->size(); ++i) difference.push_back((*got)[i] - (*expected)[i]);
  // A sum that cancels has no relative precision of its own: values are about 1.
  return norm(difference) <= 1e-12 * (norm(*expected) + 1e-2);
}

/// The message without numbers, in which ranks may name themselves, and without the backend of the
/// operation in which the rank noticed a failure: a device group has two.
std::string alike_on_ranks(std::string message) {
  for (const std::string_view backend : {" (host)", " (nccl)", " (staged)"}) {
    if (const auto at = message.find(backend); at != std::string::npos) {
      message.erase(at, backend.size());
    }
  }
  std::erase_if(message, [](unsigned char character) { return std::isdigit(character) != 0; });
  return message;
}

std::string error_of(const Outcome& outcome) {
  return outcome.error.empty() ? "no error" : outcome.error + ": " + outcome.text;
}

std::optional<std::string> difference_in_errors(const Expected& expected,
                                                const std::vector<const Outcome*>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& got = *ranks[rank];
    const bool right = got.error.empty() ? expected.error.empty() || expected.may_fail
                                         : expected.error == "any" || got.error == expected.error;
    if (!right) {
      return text("rank ", rank, ": got ", error_of(got), ", expected ",
                  expected.error.empty() ? "no error" : expected.error);
    }
    if (!got.error.empty() && got.text.find(expected.mentions) == std::string::npos) {
      return text("rank ", rank, ": got ", error_of(got), ", expected it to mention '",
                  expected.mentions, "'");
    }
    if (got.error != ranks[0]->error ||
        alike_on_ranks(got.text) != alike_on_ranks(ranks[0]->text)) {
      return text("ranks raise different errors: rank 0 ", error_of(*ranks[0]), "; rank ", rank,
                  ' ', error_of(got));
    }
  }
  return std::nullopt;
}

std::optional<std::string> difference_in_values(const Expected& expected,
                                                const std::vector<const Outcome*>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& got = ranks[rank]->values;
    if (got.size() != expected.names.size()) {
      return text("rank ", rank, ": got ", got.size(), " values, expected ", expected.names.size());
    }
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto& right =
          expected.checks[i] == Check::same ? ranks[0]->values[i] : expected.values[rank][i];
      const bool equal =
          expected.checks[i] == Check::none ||
          (expected.checks[i] == Check::same ? got[i] == right : is_near(got[i], right));
      if (equal) continue;
      const auto first = largest_difference(got[i], right);
      return text("rank ", rank, ": ", expected.names[i], ": got ", text_of(got[i], first),
                  ", expected ", text_of(right, first),
                  expected.checks[i] == Check::same ? " as on rank 0" : "");
    }
  }
  return std::nullopt;
}

void write_size(std::ostream& out, std::size_t size) {
  const std::uint64_t number = size;
  out.write(reinterpret_cast<const char*>(&number), sizeof number);
}

std::size_t read_size(std::istream& in) {
  std::uint64_t number = 0;
  in.read(reinterpret_cast<char*>(&number), sizeof number);
  return in ? number : 0;
}

void write_text(std::ostream& out, const std::string& characters) {
  write_size(out, characters.size());
  out.write(characters.data(), static_cast<std::streamsize>(characters.size()));
}

std::string read_text(std::istream& in) {
  std::string characters(read_size(in), '\0');
  in.read(characters.data(), static_cast<std::streamsize>(characters.size()));
  return characters;
}

}  // namespace

std::optional<std::string> difference(const std::vector<Expected>& expected,
                                      const std::vector<Log>& logs) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    std::vector<const Outcome*> ranks;
    bool failed = false;
    for (std::size_t rank = 0; rank < logs.size(); ++rank) {
      if (logs[rank].size() <= i)
        return text("operation ", i, ": rank ", rank, " did not come to it");
      ranks.push_back(&logs[rank][i]);
      failed = failed || !ranks.back()->error.empty();
    }
    for (std::size_t rank = 0; rank < logs.size(); ++rank) {
      if (failed && has(expected[i].later, static_cast<int>(rank)))
        ranks[rank] = &logs[rank].back();
    }
    if (auto found = difference_in_errors(expected[i], ranks)) {
      return text("operation ", i, ": ", *found);
    }
    if (!ranks[0]->error.empty() && expected[i].ends) return std::nullopt;
    if (auto found = difference_in_values(expected[i], ranks)) {
      return text("operation ", i, ": ", *found);
    }
  }
  return std::nullopt;
}

void write(std::ostream& out, const Log& log) {
  write_size(out, log.size());
  for (const auto& outcome : log) {
    write_text(out, outcome.error);
    write_text(out, outcome.text);
    write_size(out, outcome.values.size());
    for (const auto& values : outcome.values) {
      write_size(out, values ? values->size() + 1 : 0);
      if (!values) continue;
      out.write(reinterpret_cast<const char*>(values->data()),
                static_cast<std::streamsize>(values->size() * sizeof(double)));
    }
  }
}

std::optional<Log> read_log(std::istream& in) {
  Log log(read_size(in));
  for (auto& outcome : log) {
    outcome.error = read_text(in);
    outcome.text = read_text(in);
    outcome.values.resize(read_size(in));
    for (auto& values : outcome.values) {
      const auto size = read_size(in);
      if (size == 0) continue;
      values.emplace(size - 1);
      in.read(reinterpret_cast<char*>(values->data()),
              static_cast<std::streamsize>((size - 1) * sizeof(double)));
    }
  }
  return in ? std::optional(std::move(log)) : std::nullopt;
}

}  // namespace lockstep::random_programs
