#pragma once

#include <filesystem>
#include <fstream>

namespace lockstep::inline v0_2::record {

/// A file that appears under its name only when commit() has written all of it. Until then it is
/// beside it as "<name>.partial". Without commit(), the destructor removes it. The file is not
/// synced to disk, because its content can be made again or is not essential.
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
