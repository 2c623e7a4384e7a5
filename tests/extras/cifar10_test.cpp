#include <torch/types.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/datasets.h"
#include "tests/matchers.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

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
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder / name, std::ios::binary) << bytes;
  }
  std::string error(Cifar10::Split split = Cifar10::Split::train) const {
    return message_of<DataError>([&] { Cifar10(folder.path(), split); });
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }

  const TemporaryFolder folder;
};

TEST_F(Cifar10Files, GivesTheImagesAsScaledBatches) {
  write("data_batch_1.bin", records({6, 9, 0}));
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
}

TEST_F(Cifar10Files, JoinsTheBatchesThatAreThere) {
  write("data_batch_1.bin", records({1, 2}));
  write("data_batch_2.bin", records({3}));
  write("data_batch_3.bin", records({4, 5, 6}));
  write("test_batch.bin", records({7}));
  EXPECT_TRUE(Cifar10(folder.path()).targets().equal(torch::arange(1, 7)));
  EXPECT_TRUE(
      Cifar10(folder.path(), Cifar10::Split::test).targets().equal(torch::tensor({7}, at::kLong)));
}

TEST_F(Cifar10Files, AGapIsAnError) {
  write("data_batch_1.bin", records({1}));
  write("data_batch_3.bin", records({1}));
  EXPECT_EQ(error(), "found " + path("data_batch_3.bin") + ", but not " + path("data_batch_2.bin"));
}

TEST_F(Cifar10Files, MissingFilesAreNamed) {
  EXPECT_THAT(error(), AllOf(HasSubstr(path("data_batch_1.bin")), HasSubstr("No such file")));
  EXPECT_THAT(error(Cifar10::Split::test), HasSubstr(path("test_batch.bin")));
  std::filesystem::create_directory(folder / "test_batch.bin");
  EXPECT_THAT(error(Cifar10::Split::test), HasSubstr(path("test_batch.bin")));
}

TEST_F(Cifar10Files, EveryTruncationNamesFileAndOffset) {
  const std::string whole = records({1, 2});
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, record - 1, record + 1, 2 * record - 1}) {
    write("data_batch_1.bin", whole.substr(0, size));
    const std::size_t start = size / record * record;
    EXPECT_EQ(error(), path("data_batch_1.bin") + ": offset " + std::to_string(start) +
                           ": expected an image of 3073 bytes, found the end after " +
                           std::to_string(size - start));
  }
}

TEST_F(Cifar10Files, ALabelBeyondNineIsAnError) {
  write("data_batch_1.bin", records({1, 2}));
  write("data_batch_2.bin", records({3, 10}));
  EXPECT_EQ(error(),
            path("data_batch_2.bin") + ": offset 3073: expected a label from 0 to 9, found 10");
}

TEST_F(Cifar10Files, AnIndexBeyondTheEndIsAnError) {
  write("data_batch_1.bin", records({1, 2}));
  Cifar10 data(folder.path());
  const std::vector<std::size_t> beyond{2};
  EXPECT_THROW(data.get_batch(beyond), DataError);
}

TEST_F(Cifar10Files, HoldsTensorsToo) {
  const at::Tensor images = torch::zeros({2, 3, 32, 32}, at::kByte);
  EXPECT_EQ(Cifar10(images, torch::tensor({9, 0}, at::kLong)).size(), 2u);
  EXPECT_THROW(Cifar10(images, torch::tensor({10, 0}, at::kLong)), InvalidArgument);
  EXPECT_THROW(Cifar10(images, torch::tensor({-1, 0}, at::kLong)), InvalidArgument);
  EXPECT_THROW(Cifar10(images, torch::tensor({1}, at::kLong)), InvalidArgument);
  EXPECT_THROW(Cifar10(images, torch::tensor({1, 1}, at::kInt)), InvalidArgument);
  EXPECT_THROW(Cifar10(images.to(at::kFloat), torch::tensor({1, 1}, at::kLong)), InvalidArgument);
  EXPECT_THROW(Cifar10(images[0], torch::tensor({1, 1}, at::kLong)), InvalidArgument);
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

}  // namespace
}  // namespace lockstep::testing
