#include <cmath>

#include "tests/examples/program_run.h"

// language_model and forecast, run as a user does: on a text and on the series of the repository,
// with small models.

namespace lockstep::testing {
namespace {

struct SequenceProgram {
  std::string command;
  std::string error;  ///< of --metrics, which training lowers
  int batches;        ///< of an epoch
};

class SequenceTraining : public ProgramRun, public ::testing::WithParamInterface<SequenceProgram> {
 protected:
  /// On two ranks, up to the end of an epoch.
  Result train(int epochs, const std::string& flags) const {
    return two_ranks(GetParam().command + " --metrics metrics.jsonl --epochs " +
                     std::to_string(epochs) + flags);
  }
  std::vector<double> errors() const { return values(GetParam().error.c_str()); }
};

// The licence of the project has 11 kB, and the series 2284 values.
INSTANTIATE_TEST_SUITE_P(
    Programs, SequenceTraining,
    ::testing::Values(
        SequenceProgram{.command = "language_model --data '" LOCKSTEP_SOURCE_DIR "/LICENSE' "
                                   "--context 16 --layers 1 --width 32 --heads 2 --lr 0.003",
                        .error = "test_bits_per_byte",
                        .batches = 39},
        SequenceProgram{.command = "forecast --channels 4", .error = "test_error", .batches = 53}),
    [](const auto& tested) {
      const std::string& command = tested.param.command;
      return command.substr(0, command.find(' '));
    });

// Threads give the bits of processes.
TEST_P(SequenceTraining, AResumedRunOfProcessesEndsInTheBitsOfThreads) {
  const std::string flags = " --no-efficiency --checkpoint-dir ";
  const Result whole =
      alone(GetParam().command + " --metrics metrics.jsonl --epochs 3 --threads 2 --log-dir log" +
            flags + "whole");
  ASSERT_EQ(whole.code, 0) << whole.err;
  for (const char* part : {"before training  test ", "epoch 1/3  loss ", "epoch 3/3  loss "})
    EXPECT_EQ(count(whole.out, part), 1) << part << whole.out;
  EXPECT_EQ(count(whole.out, " windows/s "), 3) << whole.out;
  const auto expected = metrics();
  const auto learnt = errors();
  ASSERT_EQ(learnt.size(), 4u) << "before training, and after each epoch";
  EXPECT_LT(learnt[3], 0.7 * learnt[0]);
  EXPECT_EQ(json_lines("log/intervals.jsonl").size(), 3u);
  EXPECT_EQ(json_lines("log/metrics.jsonl").back()["step"], 3 * GetParam().batches);

  ASSERT_EQ(train(1, " --quiet" + flags + "parts").code, 0);
  const Result rest = train(3, flags + "parts");
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.out, HasSubstr("parts: 1 epoch is done\nepoch 2/3  loss "));
  const std::string last = "checkpoint-000003.safetensors";
  EXPECT_EQ(content(folder / "whole" / last), content(folder / "parts" / last));
  const auto lines = metrics();
  ASSERT_EQ(lines.size(), expected.size()) << "a resumed run adds its lines";
  for (std::size_t i = 0; i < lines.size(); ++i)
    for (const auto& [name, value] : expected[i].items())
      if (!name.ends_with("second") && name != "seconds") {
        EXPECT_EQ(lines[i][name], value) << "line " << i + 1 << ' ' << name;
      }

  // Ranks share the batch. Sums of float32 are rounded differently, and each step depends on those
  // before.
  ASSERT_EQ(alone(GetParam().command + " --quiet --epochs 1 --metrics metrics.jsonl").code, 0);
  const auto one_rank = errors();
  ASSERT_EQ(one_rank.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(learnt[i], one_rank[i], 1e-3 * one_rank[i]);
}

class SequencePrograms : public ProgramRun {};

TEST_F(SequencePrograms, TheBaselinesAreThoseOfTheSeries) {
  // The last fifth of 50 values: the 10th to the 1st from the end, forecast two at a time. Line i
  // holds i and the square of i, and every seventh square is missing.
  std::ofstream out(folder / "squares.csv");
  out << "i,\"square\"\n";
  const auto known = [](int i) { return i % 7 != 3; };
  for (int i = 0; i < 50; ++i)
    out << i << ',' << (known(i) ? std::to_string(i * i) : std::string()) << '\n';
  out.close();
  const Result result = alone(
      "forecast --threads 2 --data squares.csv --season 4 --window 8 --horizon 2 --batch-size 8 "
      "--epochs 1 --no-efficiency --metrics metrics.jsonl");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("square: 31 windows to train, 9 later ones to test; "));
  const auto value = [&](int i) {
    return known(i) ? i * i : ((i - 1) * (i - 1) + (i + 1) * (i + 1)) / 2.0;
  };
  double season = 0;
  double growth = 0;
  for (int first = 40; first <= 48; ++first) {
    const double grown = value(first - 1) - value(first - 5);
    for (const int i : {first, first + 1}) {
      season += std::abs(value(i - 4) - value(i)) / 18;
      growth += std::abs(value(i - 4) + grown - value(i)) / 18;
    }
  }
  for (const double measured : values("last_season_error")) EXPECT_NEAR(measured, season, 1e-9);
  for (const double measured : values("last_season_and_growth_error"))
    EXPECT_NEAR(measured, growth, 1e-9);
}

TEST_F(SequencePrograms, WriteASampleOfAnyText) {
  std::filesystem::create_directory(folder / "texts");
  std::ofstream(folder / "texts/b") << std::string(400, '\x01');
  std::ofstream(folder / "texts/a") << std::string(400, '\x02');
  std::filesystem::create_symlink("a", folder / "texts/link");
  std::ofstream(folder / "c") << std::string(200, '\x03');
  const Result result = alone(
      "language_model --threads 2 --data texts c --context 9 --layers 1 --width 8 --heads 1 "
      "--batch-size 2 --epochs 1 --sample 50 --prompt Hello --no-efficiency");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("99 windows of 9 bytes to train, 11 to test; 2 ranks\n"));
  EXPECT_EQ(count(result.out, "\nsample:\nHello"), 1) << result.out;
  for (const char c : result.out) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= ' ');
}

TEST_F(SequencePrograms, BadInputIsFoundBeforeTraining) {
  std::ofstream(folder / "short.csv") << "day,load\n1,2\n";
  std::ofstream(folder / "words.csv") << "day,load\n1,2\n2,\x1b[1mmany\n";
  std::ofstream(folder / "late.csv") << "day,load\n1,\n2,2\n";
  std::filesystem::create_directory(folder / "empty");
  const std::pair<std::string, std::string> cases[] = {
      {"forecast --data nowhere.csv",
       "--data nowhere.csv: cannot open: No such file or directory. "
       "Give a CSV file with a header"},
      {"forecast --batch-size 31", "--batch-size 31: expected a multiple of the 2 ranks. Choose"},
      {"forecast --data short.csv",
       "--data short.csv: got 1 value, expected at least 163 for --window 104 and --horizon 26. "
       "Give a longer series or lower them."},
      {"forecast --data words.csv",
       "--data words.csv: line 3: got '?[1mmany', expected a finite number or nothing"},
      {"forecast --data late.csv", "--data late.csv: line 3: got the first value, expected it on"},
      {"forecast --batch-size 2000",
       "--batch-size 2000: the training part of --data has 1699 windows, expected at least one"},
      {"forecast --metrics no/such/m", "--metrics no/such/m: cannot write: No such file"},
      {"language_model --data nowhere", "--data nowhere: found nothing there. Give text files or"},
      {"language_model --data empty", "--data: got 0 bytes, expected at least 650 for --context"}};
  for (const auto& [command, complaint] : cases) {
    // Both ranks of the first two complain alike, and one of them prints it.
    const bool several = command.ends_with("nowhere.csv") || command.ends_with("31");
    const Result result = several ? two_ranks(command) : alone(command);
    expect_one_complaint(result, 1, command.substr(0, command.find(' ')) + ": " + complaint);
    EXPECT_THAT(result.out, Not(HasSubstr("epoch"))) << command;
  }
  for (const char* command :
       {"forecast --horizon 53", "forecast --window 52", "forecast --season 0",
        "language_model --heads 3", "language_model --sample -1", "language_model --prompt ''",
        "language_model --lr nan"}) {
    const Result result = alone(command);
    EXPECT_EQ(result.code, 2) << command;
    const std::string flag = std::string(command).substr(std::string(command).find("--"));
    EXPECT_THAT(result.err, StartsWith(flag.substr(0, flag.find(' ')) + ":"));
  }
}

}  // namespace
}  // namespace lockstep::testing
