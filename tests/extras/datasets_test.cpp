#include "lockstep/datasets.h"

#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/matchers.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::EndsWith;
using Series = torch::data::Example<>;

constexpr std::size_t record = 3073;

char pixel_of(int label, std::size_t place) { return static_cast<char>(label * 37 + place * 5); }

std::string records(const std::vector<int>& labels) {
  std::string bytes;
  for (const int label : labels) {
    bytes += static_cast<char>(label);
    for (std::size_t place = 0; place < record - 1; ++place) bytes += pixel_of(label, place);
  }
  return bytes;
}

class Cifar10Files : public ::testing::Test {
 protected:
  std::string error(Cifar10::Split split = Cifar10::Split::train) const {
    return message_of<DataError>([&] { Cifar10(folder.path(), split); });
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }

  const TemporaryFolder folder;
};

TEST_F(Cifar10Files, GivesTheImagesAsScaledBatches) {
  folder.write("data_batch_1.bin", records({6, 9, 0}));
  Cifar10 data(folder.path());
  ASSERT_EQ(data.size(), 3u);
  const std::vector<std::size_t> wanted{1, 2, 1};
  const auto batch = data.get_batch(wanted);
  ASSERT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{3, 3, 32, 32}));
  ASSERT_EQ(batch.data.scalar_type(), at::kFloat);
  EXPECT_TRUE(batch.target.equal(torch::tensor({9, 0, 9}, at::kLong)));
  const float* value = batch.data.const_data_ptr<float>();
  for (const int label : {9, 0, 9})
    for (std::size_t place = 0; place < record - 1; ++place)
      ASSERT_EQ(*value++,
                static_cast<float>(static_cast<std::uint8_t>(pixel_of(label, place))) / 255.0F);
  const std::vector<std::size_t> beyond{3};
  EXPECT_THROW(data.get_batch(beyond), DataError);
}

TEST_F(Cifar10Files, BatchesThatAreThereAreJoinedAndMissingOnesAndGapsAreNamed) {
  EXPECT_THAT(error(), AllOf(HasSubstr(path("data_batch_1.bin")), HasSubstr("No such file")));
  EXPECT_THAT(error(Cifar10::Split::test), HasSubstr(path("test_batch.bin")));
  std::filesystem::create_directory(folder / "test_batch.bin");
  EXPECT_EQ(error(Cifar10::Split::test), path("test_batch.bin") + ": is not a regular file");
  folder.write("data_batch_1.bin", records({1, 2}));
  folder.write("data_batch_3.bin", records({4, 5, 6}));
  EXPECT_EQ(error(), "found " + path("data_batch_3.bin") + ", but not " + path("data_batch_2.bin"));
  folder.write("data_batch_2.bin", records({3}));
  EXPECT_TRUE(Cifar10(folder.path()).targets().equal(torch::arange(1, 7)));
  std::filesystem::remove(folder / "test_batch.bin");
  folder.write("test_batch.bin", records({7}));
  EXPECT_TRUE(
      Cifar10(folder.path(), Cifar10::Split::test).targets().equal(torch::tensor({7}, at::kLong)));
}

TEST_F(Cifar10Files, WrongImagesAndLabelsAreRefusedInFilesWithTheirOffset) {
  const std::string whole = records({1, 2});
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, record - 1, record + 1, 2 * record - 1}) {
    folder.write("data_batch_1.bin", whole.substr(0, size));
    const std::size_t start = size / record * record;
    EXPECT_EQ(error(), path("data_batch_1.bin") + ": offset " + std::to_string(start) +
                           ": expected an image of 3073 bytes, found the end after " +
                           std::to_string(size - start));
  }
  folder.write("data_batch_1.bin", whole);
  folder.write("data_batch_2.bin", records({3, 10}));
  EXPECT_EQ(error(),
            path("data_batch_2.bin") + ": offset 3073: expected a label from 0 to 9, found 10");
  const at::Tensor images = torch::zeros({2, 3, 32, 32}, at::kByte);
  const auto labels = [](int first, int second) {
    return torch::tensor({first, second}, at::kLong);
  };
  EXPECT_EQ(Cifar10(images, labels(9, 0)).size(), 2u);
  for (const auto& targets :
       {labels(10, 0), labels(-1, 0), labels(1, 1).slice(0, 1), labels(1, 1).to(at::kInt)})
    EXPECT_THROW(Cifar10(images, targets), InvalidArgument);
  for (const auto& wrong : {images.to(at::kFloat), images[0]})
    EXPECT_THROW(Cifar10(wrong, labels(1, 1)), InvalidArgument);
}

TEST(ColouredShapes, AreTenClassesThatDifferAndRepeat) {
  const Cifar10 shapes = coloured_shapes(400, 1);
  EXPECT_EQ(shapes.size(), 400u);
  EXPECT_TRUE(shapes.targets().bincount().eq(40).all().item<bool>());
  EXPECT_TRUE(torch::equal(shapes.images(), coloured_shapes(400, 1).images()));
  EXPECT_FALSE(torch::equal(shapes.images(), coloured_shapes(400, 2).images()));
  EXPECT_TRUE(torch::equal(shapes.images().slice(0, 0, 10), coloured_shapes(10, 1).images()));
  EXPECT_EQ(coloured_shapes(0, 1).size(), 0u);
}

class CsvFiles : public ::testing::Test {
 protected:
  CsvFile read(const std::string& text, const CsvOptions& options = {}) const {
    std::ofstream(file, std::ios::binary) << text;
    return CsvFile(file, options);
  }
  /// The text of the error after the name of the file.
  std::string error(const std::string& text, const CsvOptions& options = {}) const {
    try {
      read(text, options);
    } catch (const DataError& caught) {
      EXPECT_EQ(caught.operation(), "CsvFile");
      EXPECT_TRUE(std::string(caught.what()).starts_with(file.string() + ": "));
      return std::string(caught.what()).substr(file.string().size() + 2);
    }
    return "no DataError";
  }

  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "prices.csv";
};

TEST_F(CsvFiles, ColumnsAreChosenByNameAndIndexAndAllOthersAreFeatures) {
  const std::string text = "time,open,high,close\n09:30,1,2,3\n09:31,4,5.5,-6e1\n";
  const CsvFile data = read(text, {.features = {3, "open"}, .targets = {"high"}});
  EXPECT_TRUE(data.features().equal(torch::tensor({{3.0F, 1.0F}, {-60.0F, 4.0F}})));
  EXPECT_TRUE(data.targets().equal(torch::tensor({{2.0F}, {5.5F}})));
  const CsvFile rest = read("1,2,3\n4,5,6", {.label = 1, .header = false, .dtype = at::kDouble});
  EXPECT_TRUE(rest.features().equal(torch::tensor({{1, 3}, {4, 6}}, at::kDouble)));
  EXPECT_TRUE(rest.targets().equal(torch::tensor({2, 5}, at::kLong)));
  EXPECT_EQ(read("a,b\n1,2\n").targets().sizes(), at::IntArrayRef({1, 0}));
  CsvFile rows = read("x,y\n0,0\n1,10\n2,20\n", {.targets = {"y"}});
  const auto batch = rows.get_batch(std::vector<std::size_t>{2, 0, 2});
  EXPECT_TRUE(batch.data.equal(torch::tensor({{2.0F}, {0.0F}, {2.0F}})));
  EXPECT_TRUE(batch.target.equal(10 * batch.data));
  EXPECT_EQ(rows.get_batch({}).data.sizes(), at::IntArrayRef({0, 1}));
  EXPECT_THROW(rows.get_batch(3), DataError);
}

TEST_F(CsvFiles, AcceptsWhatOtherProgramsWrite) {
  const CsvFile data = read(
      "\xef\xbb\xbf\"x\"; y ;\"a \"\"b\"\", c\"\r\n\r\n +1 ;\"2\";\"a;\"\"b\"\r\n   \n-.5;nan;6\" "
      "x\r\n",
      {.features = {"x", 1}, .separator = ';'});
  EXPECT_TRUE(data.features().nan_to_num(9).equal(torch::tensor({{1.0F, 2.0F}, {-0.5F, 9.0F}})));
  // Python's csv writes the texts: the "a", b | "", | , | "
  const CsvFile quotes =
      read("text,x\n\"the \"\"a\"\", b\",1\n\"\"\"\"\",\",2\n\",\",3\n\"\"\"\",4\n\"\",5\n",
           {.features = {"x"}});
  EXPECT_TRUE(quotes.features().equal(torch::tensor({{1.0F}, {2.0F}, {3.0F}, {4.0F}, {5.0F}})));
  EXPECT_TRUE(read("a\tb\n1\t\n", {.separator = '\t', .empty = 7})
                  .features()
                  .equal(torch::tensor({{1.0F, 7.0F}})));
}

TEST_F(CsvFiles, WrongFieldsLinesAndColumnsAreNamed) {
  EXPECT_EQ(error("a,b\n1,2\n\n3,x1\n"),
            "line 4: column 1 (b): expected a number of dtype Float, found \"x1\"");
  EXPECT_EQ(error("1,2\n3,\n", {.header = false}),
            "line 2: column 1: expected a number of dtype Float, found \"\"");
  using Texts = std::vector<std::string>;
  for (const auto& text : Texts{"1.5.2", "0x10", "1,5\"", "+-1", "1e999", "--1", "1 2", "3.5e38"})
    EXPECT_THAT(error("a\tb\n1\t" + text, {.separator = '\t'}), EndsWith("found \"" + text + '"'));
  EXPECT_EQ(error("a\n3.5e38\n-inf\n", {.dtype = at::kDouble}), "no DataError");
  for (const auto& text : Texts{"-1", "0.5", "nan", "inf", ""})
    EXPECT_THAT(error("a,b\n1," + text, {.label = "b", .empty = 0}),
                EndsWith("(b): expected a class, a whole number from 0, found \"" + text + '"'));
  EXPECT_EQ(error(""), "line 1: expected a line, found the end");
  EXPECT_EQ(error("a,b\r\n"), "line 2: expected a row, found the end");
  EXPECT_EQ(error("a,b\n1,2\n3"), "line 3: expected 2 fields as in the first line, found 1");
  EXPECT_EQ(error("a,b\n1,\"2\n3\""),
            "line 2: expected a closing quote, found the end of the line");
  EXPECT_EQ(error("a,b\n1,2\n", {.features = {"c"}}),
            "line 1: expected one column \"c\", found 0 in 2 columns");
  EXPECT_THAT(error("a,a\n1,2\n", {.targets = {"a"}}), EndsWith("found 2 in 2 columns"));
  EXPECT_THAT(error("1,2\n", {.targets = {"1"}, .header = false}),
              EndsWith("found 0 in 2 columns"));
  EXPECT_EQ(error("a,b\n1,2\n", {.features = {2}}),
            "line 1: expected a column 2, found 2 columns from 0");
  EXPECT_THROW(CsvFile(folder / "none.csv"), DataError);
  EXPECT_THROW(CsvFile(folder.path()), DataError);
  EXPECT_THROW(read("a,b\n1,2\n", {.targets = {"a"}, .label = "b"}), InvalidArgument);
  EXPECT_THROW(read("a,b\n1,2\n", {.dtype = at::kLong}), InvalidArgument);
}

/// Rows [first + t, −(first + t)], with targets 1000 + first + t.
Series series_of(std::int64_t rows, double first = 0) {
  const at::Tensor value = torch::arange(rows, at::kDouble) + first;
  return {torch::stack({value, -value}, 1), value + 1000};
}

TEST(SeriesWindows, AreTheRowsOfTheDefinitionAndCrossNoTwoSeries) {
  for (const std::int64_t rows : {0, 1, 4, 5, 23}) {
    for (const SeriesWindowOptions options : std::vector<SeriesWindowOptions>{
             {},
             {.length = 3, .horizon = 2},
             {.length = 4, .horizon = 0, .stride = 3},
             {.length = 2, .horizon = 1, .stride = 5, .target_length = 3}}) {
      const std::vector<Series> all{series_of(rows), series_of(2, 100), series_of(0),
                                    series_of(7, 200)};
      SeriesWindows windows(all, options);
      const std::int64_t target_rows = std::max<std::int64_t>(1, options.target_length);
      std::size_t count = 0;
      for (const auto& [data, target] : all) {
        for (std::int64_t start = 0;; start += options.stride, ++count) {
          const std::int64_t ahead = start + options.length - 1 + options.horizon;
          if (ahead + target_rows > data.size(0)) break;
          const Series got = windows.get_batch(count);
          ASSERT_TRUE(got.data.equal(data.slice(0, start, start + options.length).unsqueeze(0)));
          const at::Tensor rows_ahead = target.slice(0, ahead, ahead + target_rows);
          ASSERT_TRUE(
              got.target.equal(options.target_length > 0 ? rows_ahead.unsqueeze(0) : rows_ahead));
        }
      }
      EXPECT_EQ(windows.size(), count);
      EXPECT_THROW(windows.get_batch(count), DataError);
      EXPECT_EQ(windows.get_batch({}).data.sizes(), at::IntArrayRef({0, options.length, 2}));
      const Series two = windows.get_batch(std::vector<std::size_t>{count - 1, 0});
      EXPECT_TRUE(two.data[0].equal(windows.get_batch(count - 1).data[0]));
      EXPECT_TRUE(two.target[1].equal(windows.get_batch(0).target[0]));
    }
  }
}

TEST(SeriesWindows, PartsOfASplitHaveNoRowInCommon) {
  const SeriesWindows whole({series_of(11), series_of(20, 100)},
                            {.length = 2, .horizon = 2, .target_length = 2});
  auto [training, validation] = whole.split(0.6);
  EXPECT_EQ(training.size(), 2u + 8u);
  EXPECT_EQ(validation.size(), 1u + 4u);
  std::vector<std::size_t> all(training.size().value());
  std::iota(all.begin(), all.end(), 0);
  // The last row before the split of each series, and the first one after it.
  const at::Tensor last = training.get_batch(all).target - 1000;
  EXPECT_EQ(last.slice(0, 0, 2).max().item<double>(), 5);
  EXPECT_EQ(last.max().item<double>(), 111);
  all.resize(validation.size().value());
  const at::Tensor first = validation.get_batch(all).data.select(2, 0);
  EXPECT_EQ(first.min().item<double>(), 6);
  EXPECT_EQ(first.slice(0, 1).min().item<double>(), 112);
  EXPECT_EQ(whole.split(1).first.size(), whole.size());
  EXPECT_THROW(whole.split(1.1), InvalidArgument);
}

TEST(SeriesWindows, WrongSeriesAndOptionsAreRefused) {
  const auto [data, target] = series_of(3);
  for (const std::vector<Series>& series :
       std::vector<std::vector<Series>>{{},
                                        {Series{}},
                                        {{data, at::Tensor()}},
                                        {{torch::tensor(1), target}},
                                        {{data, target.slice(0, 1)}},
                                        {{data, target}, {data.slice(1, 1), target}},
                                        {{data, target}, {data, target.to(at::kFloat)}}})
    EXPECT_THROW(SeriesWindows{series}, InvalidArgument);
  for (const SeriesWindowOptions options : std::vector<SeriesWindowOptions>{
           {.length = 0}, {.horizon = -1}, {.stride = 0}, {.target_length = -1}})
    EXPECT_THROW(SeriesWindows({data, target}, options), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::testing
