#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/operation_error.h"
#include "core/text.h"
#include "extras/data/select_rows.h"
#include "lockstep/datasets.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

namespace {

using detail::concat;

/// The text without spaces around it, and without the quotes around the rest.
std::string_view plain(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  text = text.substr(0, text.find_last_not_of(' ') + 1);
  const bool quoted = text.size() >= 2 && text.front() == '"' && text.back() == '"';
  return quoted ? text.substr(1, text.size() - 2) : text;
}

/// The lines of a CSV file that have text, divided into fields.
class CsvLines {
 public:
  CsvLines(const std::filesystem::path& path, const CsvOptions& options)
      : path_(path.string()), options_(options), in_(path, std::ios::binary) {
    if (!in_) throw DataError(concat(path_, ": cannot open: ", std::strerror(errno)));
    if (!next()) fail("expected a line, found the end");
    names_.assign(fields_.begin(), fields_.end());
  }

  /// Reads the next line. False at the end of the file.
  bool next() {
    do {
      ++number_;
      if (!std::getline(in_, line_)) {
        if (in_.bad()) fail("cannot read: ", std::strerror(errno));
        return false;
      }
      // Spreadsheets begin a file with the byte order mark.
      if (number_ == 1 && line_.starts_with("\xef\xbb\xbf")) line_.erase(0, 3);
      if (line_.ends_with('\r')) line_.pop_back();
    } while (line_.find_first_not_of(' ') == std::string::npos);
    divide();
    if (!names_.empty() && fields_.size() != names_.size())
      fail("expected ", names_.size(), " fields as in the first line, found ", fields_.size());
    return true;
  }

  /// The fields of the first line.
  const std::vector<std::string>& names() const { return names_; }

  std::size_t index_of(const CsvColumn& column) const {
    if (const auto* index = std::get_if<std::int64_t>(&column)) {
      if (*index < 0 || *index >= std::ssize(names_))
        fail("expected a column ", *index, ", found ", names_.size(), " columns from 0");
      return static_cast<std::size_t>(*index);
    }
    const auto& name = std::get<std::string>(column);
    const auto times = options_.header ? std::ranges::count(names_, name) : 0;
    if (times != 1)
      fail("expected one column \"", name, "\", found ", times, " in ", names_.size(), " columns");
    return static_cast<std::size_t>(std::ranges::find(names_, name) - names_.begin());
  }

  double number(std::size_t column, bool is_label) const {
    std::string_view text = fields_[column];
    if (text.empty() && options_.empty && !is_label) return *options_.empty;
    if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_number = error == std::errc() && end == text.data() + text.size();
    const bool is_class = value >= 0 && value < 0x1p53 && value == std::floor(value);
    const bool fits = options_.dtype == at::kDouble || std::isinf(value) ||
                      !(std::abs(value) > std::numeric_limits<float>::max());
    if (!is_number || !fits || (is_label && !is_class))
      fail("column ", column, options_.header ? " (" + names_[column] + ")" : "", ": expected a ",
           is_label ? "class, a whole number from 0" : "number of dtype ",
           is_label ? "" : toString(options_.dtype), ", found \"", fields_[column].substr(0, 40),
           '"');
    return value;
  }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw DataError(concat(path_, ": line ", number_, ": ", parts...));
  }

 private:
  void divide() {
    fields_.clear();
    std::size_t begin = 0;
    bool quoted = false;
    for (std::size_t at = 0; at <= line_.size(); ++at) {
      const auto field = [&] { return plain(std::string_view(line_).substr(begin, at - begin)); };
      if (quoted && line_[at] == '"' && line_[at + 1] == '"') {
        ++at;  // a quote of the text
      } else if (line_[at] == '"' && (quoted || field().empty())) {
        quoted = !quoted;
      } else if (at == line_.size() || (line_[at] == options_.separator && !quoted)) {
        fields_.push_back(field());
        begin = at + 1;
      }
    }
    if (quoted) fail("expected a closing quote, found the end of the line");
  }

  std::string path_;
  const CsvOptions& options_;
  std::ifstream in_;
  std::string line_;
  std::size_t number_ = 0;
  std::vector<std::string_view> fields_;  ///< of line_, without quotes and the spaces around them
  std::vector<std::string> names_;
};

}  // namespace

CsvFile::CsvFile(const std::filesystem::path& path, const CsvOptions& options) {
  if ((options.dtype != at::kFloat && options.dtype != at::kDouble) ||
      (options.label && !options.targets.empty()))
    detail::throw_invalid("CsvFile", "got dtype ", toString(options.dtype),
                          options.label ? " and a label" : "", ", expected Float or Double, and ",
                          "targets or a label");
  detail::as_operation("CsvFile", [&] {
    CsvLines lines(path, options);
    std::vector<std::size_t> features;
    std::vector<std::size_t> targets;
    for (const CsvColumn& column : options.features) features.push_back(lines.index_of(column));
    for (const CsvColumn& column : options.targets) targets.push_back(lines.index_of(column));
    if (options.label) targets.push_back(lines.index_of(*options.label));
    for (std::size_t column = 0; options.features.empty() && column < lines.names().size();
         ++column)
      if (std::ranges::find(targets, column) == targets.end()) features.push_back(column);

    std::int64_t rows = 0;
    std::vector<double> data;
    std::vector<double> target;
    if (options.header && !lines.next()) lines.fail("expected a row, found the end");
    do {
      ++rows;
      for (const std::size_t column : features) data.push_back(lines.number(column, false));
      for (const std::size_t column : targets)
        target.push_back(lines.number(column, options.label.has_value()));
    } while (lines.next());
    features_ = at::tensor(data, options.dtype).view({rows, std::ssize(data) / rows});
    targets_ = at::tensor(target, options.label ? at::kLong : options.dtype);
    if (!options.label) targets_ = targets_.view({rows, std::ssize(target) / rows});
  });
}

torch::data::Example<> CsvFile::get_batch(c10::ArrayRef<std::size_t> indices) {
  return detail::select_rows(features_, targets_, indices, "CsvFile");
}

std::optional<std::size_t> CsvFile::size() const {
  return static_cast<std::size_t>(features_.size(0));
}

}  // namespace lockstep
