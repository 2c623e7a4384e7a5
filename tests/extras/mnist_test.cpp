#include <torch/types.h>
#include <zlib.h>

#include <functional>
#include <random>
#include <tuple>

#include "lockstep/datasets.h"
#include "tests/big_endian.h"
#include "tests/matchers.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {
namespace {

constexpr int digits = 5;
constexpr int pixels = 28 * 28;

std::uint8_t pixel_of(int digit, int pixel) {
  return static_cast<std::uint8_t>(digit * 31 + pixel * 7);
}

std::string images_file() {
  std::string bytes = big_endian({0x803, digits, 28, 28});
  for (int digit = 0; digit < digits; ++digit)
    for (int pixel = 0; pixel < pixels; ++pixel) bytes += static_cast<char>(pixel_of(digit, pixel));
  return bytes;
}

std::string labels_file() {
  return big_endian({0x801, digits}) + std::string("\x09\0\x04\x04\x07", 5);
}

void write_packed(const std::filesystem::path& path, const std::string& bytes) {
  gzFile out = gzopen(path.c_str(), "wb");
  ASSERT_EQ(gzwrite(out, bytes.data(), static_cast<unsigned>(bytes.size())),
            static_cast<int>(bytes.size()));
  gzclose(out);
}

class MnistFiles : public ::testing::Test {
 protected:
  static void write(const std::filesystem::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }

  const TemporaryFolder folder;
  const std::filesystem::path images = folder / "train-images-idx3-ubyte";
  const std::filesystem::path labels = folder / "train-labels-idx1-ubyte";

  void SetUp() override {
    write(images, images_file());
    write(labels, labels_file());
  }
  std::string error() const {
    return message_of<DataError>([this] { Mnist data(folder.path()); });
  }
};

TEST_F(MnistFiles, GivesTheDigitsAsScaledBatches) {
  Mnist data(folder.path());
  ASSERT_EQ(data.size(), std::size_t{digits});
  const std::vector<std::size_t> wanted{4, 0, 4};
  const auto batch = data.get_batch(wanted);
  ASSERT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{3, 1, 28, 28}));
  ASSERT_EQ(batch.data.scalar_type(), at::kFloat);
  ASSERT_EQ(batch.target.scalar_type(), at::kLong);
  EXPECT_TRUE(batch.target.equal(torch::tensor({7, 9, 7}, at::kLong)));
  for (std::size_t i = 0; i < wanted.size(); ++i)
    for (int pixel = 0; pixel < pixels; ++pixel)
      ASSERT_EQ(batch.data.const_data_ptr<float>()[i * pixels + static_cast<std::size_t>(pixel)],
                static_cast<float>(pixel_of(static_cast<int>(wanted[i]), pixel)) / 255.0F);
  const auto one = data.get(2);
  EXPECT_EQ(one.data.sizes(), (std::vector<std::int64_t>{1, 28, 28}));
  EXPECT_EQ(one.target.item<int>(), 4);
  EXPECT_EQ(one.data.sum().item<float>(), data.get_batch(2).data.sum().item<float>());
  EXPECT_THAT(message_of<DataError>([&] { data.get(digits); }),
              HasSubstr("got index 5, expected one below 5"));
}

TEST_F(MnistFiles, MissingFilesAreNamedBothWays) {
  EXPECT_THAT(message_of<DataError>([this] { Mnist data(folder.path(), Mnist::Split::test); }),
              AllOf(HasSubstr((folder / "t10k-images-idx3-ubyte").string() + " nor"),
                    HasSubstr((folder / "t10k-images-idx3-ubyte.gz").string())));
  std::filesystem::remove(labels);
  EXPECT_THAT(error(),
              AllOf(HasSubstr(labels.string() + " nor"), HasSubstr(labels.string() + ".gz")));
  EXPECT_THAT(message_of<DataError>([] { Mnist data("no/such/folder"); }),
              HasSubstr("found neither"));
  SetUp();  // both files again
  std::filesystem::remove(images);
  std::filesystem::create_directory(images);
  EXPECT_THAT(error(), HasSubstr(images.string()));
}

TEST_F(MnistFiles, DamageAndEveryTruncationAreNamedWithTheirPlace) {
  const std::tuple<const std::filesystem::path*, std::function<void(std::string&)>, const char*>
      cases[] = {
          {&images, [](auto& bytes) { bytes[3] = 1; },
           ": offset 0: expected magic number 0x00000803, found 0x00000801"},
          {&images, [](auto& bytes) { bytes[15] = 27; },
           ": offset 12: expected dimension 28, found 27"},
          {&images, [](auto& bytes) { bytes.resize(1000); },
           ": offset 4: expected items of at most 1000 bytes, which the file can hold, "
           "found 5 items of 3936 bytes"},
          {&labels, [](auto& bytes) { bytes.push_back(1); }, ": offset 13: expected the end"},
          {&labels, [](auto& bytes) { bytes[8 + 3] = 10; },
           ": offset 11: expected a label from 0 to 9, found 10"},
          {&labels,
           [](auto& bytes) {
             bytes.pop_back();
             bytes[7] = digits - 1;
           },
           ": offset 4: expected 5 labels"}};
  for (const auto& [file, damage, expected] : cases) {
    SetUp();
    auto bytes = content(*file);
    damage(bytes);
    write(*file, bytes);
    EXPECT_THAT(error(), HasSubstr(file->string() + expected));
  }
  EXPECT_THAT(error(), AllOf(HasSubstr(images.string()), HasSubstr("found 4")));
  const std::string whole = labels_file();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write(labels, whole.substr(0, size));
    EXPECT_THAT(error(), HasSubstr(labels.string() + ": offset")) << size << " bytes";
  }
}

TEST_F(MnistFiles, ReadsCompressedFilesAndComparesCountsBeforeAnyValueIsRead) {
  const auto packed = folder / "train-images-idx3-ubyte.gz";
  std::string bytes = images_file();
  bytes[4] = '\xff';
  write(images, bytes);
  EXPECT_THAT(error(), HasSubstr("which the file can hold"));
  std::filesystem::remove(images);
  write_packed(packed, bytes);
  EXPECT_THAT(error(), HasSubstr("which the file can hold"));
  write_packed(packed, images_file());
  EXPECT_EQ(Mnist(folder.path()).images().const_data_ptr<std::uint8_t>()[pixels + 3],
            pixel_of(1, 3));
  // 40 MB of zeros in 40 kB, which end with damage.
  constexpr std::uint32_t count = 50'000;
  bytes = big_endian({0x803, count, 28, 28});
  bytes.resize(bytes.size() + std::size_t{count} * pixels);
  write_packed(packed, bytes);
  std::string damaged = content(packed);
  damaged.back() ^= 1;
  write(packed, damaged);
  EXPECT_THAT(error(), AllOf(HasSubstr("expected 50000 labels"), HasSubstr("found 5")));
}

TEST_F(MnistFiles, EveryTruncationAndAFlippedBitOfCompressedImagesAreErrorsThatNameTheFile) {
  std::filesystem::remove(images);
  // Noise, so that the compressed file is long enough to be cut anywhere.
  std::string noisy = big_endian({0x803, digits, 28, 28});
  std::mt19937 noise(1);
  for (int i = 0; i < digits * pixels; ++i) noisy += static_cast<char>(noise() & 0xff);
  const auto packed = folder / "train-images-idx3-ubyte.gz";
  write_packed(packed, noisy);
  const std::string whole = content(packed);
  ASSERT_EQ(error(), "");
  for (std::size_t size = 0; size < whole.size(); size += size < 30 ? 1 : 97) {
    write(packed, whole.substr(0, size));
    EXPECT_THAT(error(), HasSubstr(packed.string() + ": offset")) << size << " bytes";
  }
  write(packed, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(error(), HasSubstr(packed.string() + ": offset")) << "the last byte of the check sum";
  for (const std::size_t place : {whole.size() / 2, whole.size() - 6, whole.size() - 1}) {
    std::string bytes = whole;
    bytes[place] ^= 4;
    write(packed, bytes);
    EXPECT_THAT(error(), HasSubstr(packed.string() + ": offset")) << "at " << place;
  }
}

}  // namespace
}  // namespace lockstep::testing
