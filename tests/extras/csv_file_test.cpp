#include <torch/types.h>

#include <fstream>
#include <string>
#include <vector>

#include "lockstep/datasets.h"
#include "lockstep/error.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::EndsWith;

class CsvFiles : public ::testing::Test {
 protected:
  CsvFile read(const std::string& text, const CsvOptions& options = {}) const {
    std::ofstream(file, std::ios::binary) << text;
    return CsvFile(file, options);
  }
  /// What the error says after the name of the file.
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

TEST_F(CsvFiles, ColumnsAreChosenByNameAndIndex) {
  const std::string text = "time,open,high,close\n09:30,1,2,3\n09:31,4,5.5,-6e1\n";
  const CsvFile data = read(text, {.features = {3, "open"}, .targets = {"high"}});
  EXPECT_TRUE(data.features().equal(torch::tensor({{3.0F, 1.0F}, {-60.0F, 4.0F}})));
  EXPECT_TRUE(data.targets().equal(torch::tensor({{2.0F}, {5.5F}})));
}

TEST_F(CsvFiles, AllOtherColumnsAreFeatures) {
  const CsvFile data = read("1,2,3\n4,5,6", {.label = 1, .header = false, .dtype = at::kDouble});
  EXPECT_TRUE(data.features().equal(torch::tensor({{1, 3}, {4, 6}}, at::kDouble)));
  EXPECT_TRUE(data.targets().equal(torch::tensor({2, 5}, at::kLong)));
  EXPECT_EQ(read("a,b\n1,2\n").targets().sizes(), at::IntArrayRef({1, 0}));
}

TEST_F(CsvFiles, AcceptsWhatOtherProgramsWrite) {
  const CsvFile data = read(
      "\xef\xbb\xbf\"x\"; y ;\"a \"\"b\"\", c\"\r\n\r\n +1 ;\"2\";\"a;\"\"b\"\r\n   \n-.5;nan;6\" "
      "x\r\n",
      {.features = {"x", 1}, .separator = ';'});
  EXPECT_TRUE(data.features().nan_to_num(9).equal(torch::tensor({{1.0F, 2.0F}, {-0.5F, 9.0F}})));
  EXPECT_TRUE(read("a\tb\n1\t\n", {.separator = '\t', .empty = 7})
                  .features()
                  .equal(torch::tensor({{1.0F, 7.0F}})));
}

TEST_F(CsvFiles, WrongFieldsAreNamed) {
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
}

TEST_F(CsvFiles, WrongLinesAreNamed) {
  EXPECT_EQ(error(""), "line 1: expected a line, found the end");
  EXPECT_EQ(error("a,b\r\n"), "line 2: expected a row, found the end");
  EXPECT_EQ(error("a,b\n1,2\n3"), "line 3: expected 2 fields as in the first line, found 1");
  EXPECT_EQ(error("a,b\n1,\"2\n3\""),
            "line 2: expected a closing quote, found the end of the line");
}

TEST_F(CsvFiles, MissingColumnsAndFilesAreNamed) {
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

TEST_F(CsvFiles, BatchesAreTheRowsOfTheirIndices) {
  CsvFile data = read("x,y\n0,0\n1,10\n2,20\n", {.targets = {"y"}});
  const std::vector<std::size_t> wanted{2, 0, 2};
  const auto batch = data.get_batch(wanted);
  EXPECT_TRUE(batch.data.equal(torch::tensor({{2.0F}, {0.0F}, {2.0F}})));
  EXPECT_TRUE(batch.target.equal(10 * batch.data));
  EXPECT_EQ(data.get_batch({}).data.sizes(), at::IntArrayRef({0, 1}));
  EXPECT_THROW(data.get_batch(3), DataError);
}

}  // namespace
}  // namespace lockstep::testing
