#pragma once

#include <filesystem>
#include <fstream>

namespace lockstep::record {

/// A file that appears under its name only when commit() has written all of it; until then it lies
/// beside it as "<name>.partial", and is removed if commit() is never reached. It is not forced to
/// disk: what it holds can be made again, or done without.
/// Throws: Error naming the file and the reason.
class WholeFile {
 public:
  explicit WholeFile(std::filesystem::path path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  std::ostream& out() { return out_; }
  void commit();

 private:
  [[noreturn]] void fail() const;

  std::filesystem::path path_;
  std::filesystem::path partial_;
  std::ofstream out_;
  bool committed_ = false;
};

}  // namespace lockstep::record
