#pragma once

// Common code of the example programs: command line, exit, metrics, checkpoints. None of it trains
// anything. Compiled once for all programs, because CLI11 takes the compiler longer than most of
// them.

#include <lockstep/lockstep.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace program {

class ConfigFile;

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string fixed(double value, int digits);

/// "1 rank", "2 ranks".
template <class Count>
std::string plural(Count count, const std::string& thing) {
  return std::to_string(count) + ' ' + thing + (count == 1 ? "" : "s");
}

/// For options that take a number above zero.
CLI::Validator positive();

CLI::Validator strategy();

CLI::Option* add_strategy(CLI::App& app, std::string& text);

CLI::Option* add_threads(CLI::App& app, int& threads, const char* name = "--threads");

/// Options for the device to train on and for the backend.
void add_world(CLI::App& app);

/// The batch on the world's device.
torch::data::Example<> on_device(const torch::data::Example<>& batch, const lockstep::Group& world);

CLI::Option* add_quiet(CLI::App& app, bool& quiet);

CLI::Option* add_verbose(CLI::App& app, bool& verbose);

void add_output(CLI::App& app, bool& quiet, bool& verbose);

CLI::Option* add_mnist_folder(CLI::App& app, std::string& path);

/// The option of programs that can train in bfloat16.
CLI::Option* add_bf16(CLI::App& app, std::string& update);

/// The file of --metrics: one JSON object a line, written by rank 0.
class MetricsFile {
 public:
  using Values = std::initializer_list<std::pair<std::string_view, double>>;

  /// Without a path nothing is written. added: after what the file holds.
  explicit MetricsFile(const std::string& path, bool added = false);

  void write(Values values);

 private:
  void check() const;

  std::string path_;
  std::ofstream out_;
};

/// Notes of a checkpoint from which steps_before() reads the number of steps.
std::map<std::string, std::string> steps_note(std::int64_t steps);

/// The number of steps before a checkpoint, at which the run's log continues. It does not follow
/// from the epochs if the batch size or the number of ranks has changed. estimate: for checkpoints
/// of version 0.1, which have no such note.
std::int64_t steps_before(const lockstep::CheckpointMeta& meta, std::int64_t estimate);

std::string epochs_done(std::int64_t epochs);

/// The folder of --checkpoint-dir, if it is named: a run that is started again goes on from its
/// newest undamaged checkpoint, and files are written behind the training.
class CheckpointDir {
 public:
  explicit CheckpointDir(std::string path);

  explicit operator bool() const { return folder_.has_value(); }
  std::optional<std::filesystem::path> newest() const;

  /// Makes the folder, and finds out before the first step whether it can be written to and no
  /// other job writes to it.
  void prepare(const lockstep::Group& world);

  /// Loads the newest checkpoint, if any, and allocates the buffers for the first save. told:
  /// prints it.
  std::optional<lockstep::Resumed> load_newest(const lockstep::Checkpoint& checkpoint,
                                               const lockstep::Group& world, bool told);

  void save(const lockstep::Checkpoint& checkpoint, const lockstep::CheckpointMeta& meta);
  /// Returns when all is on disk.
  void finish();

 private:
  std::string path_;
  std::optional<lockstep::CheckpointFolder> folder_;
  std::optional<lockstep::CheckpointWriter> writer_;
};

CLI::Option* add_checkpoint_dir(CLI::App& app, std::string& path);

/// Values of --run-log and --trace.
struct LogFlags {
  std::string folder;
  bool trace = false;
};

void add_log_options(CLI::App& app, LogFlags& flags);

lockstep::RunLogOptions log_options(const LogFlags& flags, const std::string& strategy);

/// Values of one moment, to --metrics and to --run-log.
void record(std::optional<MetricsFile>& metrics, lockstep::RunLog& log, std::int64_t step,
            MetricsFile::Values values);

/// Prints the cost of each collective on rank 0.
void print_statistics(const lockstep::Group& world);

/// Records a measured efficiency, unless it is not reliable.
void record(lockstep::RunLog& log, std::int64_t step, const lockstep::Efficiency& efficiency);

/// Completes the log. Reports lost records without failing, because the training is done.
/// Ranks: all.
void finish(lockstep::RunLog& log, const char* program);

/// Parses the command line and the file of --config. An unknown flag is named even where something
/// is missing besides.
/// Throws: CLI::ParseError.
std::shared_ptr<const ConfigFile> parse(CLI::App& app, int argc, char** argv);

/// Parses the command line and runs fn on every rank; as threads of this process if threads is
/// above 0 by then. Returns main's exit code.
int run(CLI::App& app, int argc, char** argv, const std::function<void(const lockstep::Group&)>& fn,
        const int& threads = 0);

}  // namespace program
