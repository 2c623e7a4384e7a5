#include <torch/types.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "extras/data/image_crop.h"
#include "lockstep/datasets.h"
#include "tests/refusal.h"
#include "tests/temporary_folder.h"

#if LOCKSTEP_IMAGES
#include "lockstep/prefetch_loader.h"
#include "lockstep/samplers.h"
#include "tests/matchers.h"
#include "tests/png_file.h"

// jpeglib.h needs what it does not include.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
// clang-format on
#endif

namespace lockstep::testing {
namespace {

#if LOCKSTEP_IMAGES

/// Red rises downwards, green to the right, blue is 40. Shapes: [3, height, width], 0 to 255.
at::Tensor ramp(std::int64_t height, std::int64_t width) {
  const at::Tensor down = torch::linspace(0, 250, height).view({1, height, 1});
  const at::Tensor right = torch::linspace(0, 250, width).view({1, 1, width});
  return torch::cat({down.expand({1, height, width}), right.expand({1, height, width}),
                     torch::full({1, height, width}, 40)})
      .round();
}

/// Row after row, pixel after pixel.
std::string pixels_of(const at::Tensor& image) {
  const at::Tensor bytes = image.permute({1, 2, 0}).to(at::kByte).contiguous();
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

std::string png_of(const at::Tensor& image) {
  return png_file(static_cast<std::uint32_t>(image.size(1)),
                  static_cast<std::uint32_t>(image.size(2)), PngColour::rgb, pixels_of(image));
}

/// A JPEG file of images that change slowly, so that little is lost.
std::string jpeg_file(int height, int width, J_COLOR_SPACE colours, const std::string& values) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_height = static_cast<JDIMENSION>(height);
  info.image_width = static_cast<JDIMENSION>(width);
  info.in_color_space = colours;
  info.input_components = colours == JCS_GRAYSCALE ? 1 : colours == JCS_RGB ? 3 : 4;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 100, TRUE);
  jpeg_start_compress(&info, TRUE);
  const std::size_t row_bytes = values.size() / static_cast<std::size_t>(height);
  std::string copy = values;
  while (info.next_scanline < info.image_height) {
    auto* row = reinterpret_cast<JSAMPROW>(copy.data() + info.next_scanline * row_bytes);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  const std::string bytes(reinterpret_cast<char*>(memory), size);
  jpeg_destroy_compress(&info);
  free(memory);
  return bytes;
}

class ImageFolders : public ::testing::Test {
 protected:
  at::Tensor only_image(ImageFolderOptions options = {}) const {
    ImageFolder data(folder.path(), options);
    EXPECT_EQ(data.size(), 1u);
    const std::vector<std::size_t> first{0};
    return data.get_batch(first).data[0];
  }
  std::string error(ImageFolderOptions options = {}) const {
    return message_of<DataError>([&] {
      ImageFolder data(folder.path(), options);
      std::vector<std::size_t> all(*data.size());
      std::iota(all.begin(), all.end(), 0);
      data.get_batch(all);
    });
  }
  void expect_near(const at::Tensor& got, const at::Tensor& expected, double tolerance) const {
    ASSERT_EQ(got.sizes(), expected.sizes());
    EXPECT_LE((got * 255 - expected).abs().max().item<double>(), tolerance);
  }

  const TemporaryFolder folder;
};

TEST_F(ImageFolders, ClassesAndFilesAreInTheOrderOfTheirNames) {
  for (const char* name : {"zebra/1.png", "ant/b.PNG", "ant/a.png", "Bee/2.png", "Bee/10.png"})
    folder.write(name, png_of(ramp(4, 5)));
  folder.write("ant/notes.txt", "no image");
  folder.write("ant/.hidden.png", "no image");
  folder.write(".cache/x.png", "no class");
  folder.write("readme.png", "no class");
  ImageFolder data(folder.path());
  EXPECT_EQ(data.classes(), (std::vector<std::string>{"Bee", "ant", "zebra"}));
  EXPECT_EQ(data.size(), 5u);
  EXPECT_EQ(data.file(0), folder / "Bee/10.png");
  EXPECT_EQ(data.file(2), folder / "ant/a.png");
  const std::vector<std::size_t> wanted{4, 0, 3};
  const auto batch = data.get_batch(wanted);
  EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{3, 3, 4, 5}));
  EXPECT_TRUE(batch.target.equal(torch::tensor({2, 0, 1}, at::kLong)));
  const std::vector<std::size_t> beyond{5};
  EXPECT_THROW(data.get_batch(beyond), DataError);
}

TEST_F(ImageFolders, PngImagesOfEveryKindBecomeColours) {
  const at::Tensor image = ramp(6, 9);
  const at::Tensor gray = image.narrow(0, 0, 1);
  const auto expect_image = [&](const std::string& bytes, const at::Tensor& expected,
                                double tolerance = 1e-4) {
    folder.write("c/a.png", bytes);
    expect_near(only_image(), expected.expand({3, -1, -1}), tolerance);
  };
  expect_image(png_of(image), image);
  expect_image(png_file(6, 9, PngColour::gray, pixels_of(gray)), gray);
  // A transparent pixel keeps its colour.
  const at::Tensor alpha = torch::full({1, 6, 9}, 17);
  expect_image(png_file(6, 9, PngColour::rgba, pixels_of(torch::cat({image, alpha}))), image);
  expect_image(png_file(6, 9, PngColour::gray_alpha, pixels_of(torch::cat({gray, alpha}))), gray);
  expect_image(png_file(1, 2, PngColour::palette, std::string("\1\0", 2), "\1\2\3\4\5\6"),
               torch::tensor({4.0, 1.0, 5.0, 2.0, 6.0, 3.0}).view({3, 1, 2}).to(at::kFloat));
  // 16 bits: the first byte is the larger.
  expect_image(png_file(1, 2, PngColour::gray, std::string("\x30\x30\xc0\xc0", 4), "", 16),
               torch::tensor({48.0, 192.0}).view({1, 1, 2}), 1.01);
}

TEST_F(ImageFolders, JpegImagesOfEveryKindBecomeColours) {
  const at::Tensor image = ramp(40, 64);
  folder.write("c/a.jpg", jpeg_file(40, 64, JCS_RGB, pixels_of(image)));
  expect_near(only_image(), image, 8);
  const at::Tensor gray = image.narrow(0, 1, 1);
  folder.write("c/a.jpg", jpeg_file(40, 64, JCS_GRAYSCALE, pixels_of(gray)));
  expect_near(only_image(), gray.expand({3, 40, 64}), 3);
  // Adobe's form, which libjpeg writes: 255 is no ink. Black halves everything.
  const at::Tensor black = torch::full({1, 40, 64}, 128);
  folder.write("c/a.jpg", jpeg_file(40, 64, JCS_CMYK, pixels_of(torch::cat({image, black}))));
  expect_near(only_image(), image * (128.0 / 255), 4);
  // The first bytes tell what it is, as names in ImageNet do not.
  folder.write("c/a.jpg", png_of(image));
  expect_near(only_image(), image, 1e-4);
}

TEST_F(ImageFolders, TheMiddleIsShownInTheSizeWanted) {
  const at::Tensor image = ramp(64, 80);
  // Rows 4 to 59 and columns 12 to 67 of it: 0.875 of 64 pixels are 56.
  const at::Tensor middle = image.narrow(1, 4, 56).narrow(2, 12, 56);
  const at::Tensor smaller = torch::avg_pool2d(middle, 2);
  folder.write("c/a.png", png_of(image));
  expect_near(only_image({.size = 56}), middle, 1e-3);
  // A ramp stays a ramp whatever the filter, but at the edges.
  const auto inner = [](const at::Tensor& x) { return x.slice(1, 2, -2).slice(2, 2, -2); };
  expect_near(inner(only_image({.size = 28})), inner(smaller), 1);
  expect_near(only_image({.size = 64, .centre = 1}), image.narrow(2, 8, 64), 1e-3);
  folder.write("c/a.png", jpeg_file(64, 80, JCS_RGB, pixels_of(image)));
  // libjpeg decodes a quarter of it: no worse than what it loses.
  expect_near(inner(only_image({.size = 14})), inner(torch::avg_pool2d(middle, 4)), 10);
  folder.write("c/a.png", png_of(ramp(1, 3)));
  EXPECT_EQ(only_image({.size = 7}).sizes(), (std::vector<std::int64_t>{3, 7, 7}));
}

TEST_F(ImageFolders, RandomPartsDependOnSeedEpochAndIndexAlone) {
  for (int i = 0; i < 9; ++i)
    folder.write("c/" + std::to_string(i) + ".png",
                 i % 2 ? png_of(ramp(30, 40 + i))
                       : jpeg_file(64, 50 + i, JCS_RGB, pixels_of(ramp(64, 50 + i))));
  const ImageFolderOptions options{.size = 12, .crop = ImageCrop::random, .seed = 5};
  std::vector<at::Tensor> by_workers;
  for (const std::size_t workers : {0, 1, 3}) {
    ImageFolder data(folder.path(), options);
    PrefetchLoader loader(data, DistributedSampler(9, ShardSpec{}, {.shuffle = false}),
                          {.batch_size = workers + 2, .workers = workers});
    std::vector<at::Tensor> all;
    for (const std::uint64_t epoch : {0, 1}) {
      data.set_epoch(epoch);
      for (const auto& batch : loader) all.push_back(batch.data);
    }
    by_workers.push_back(torch::cat(all));
  }
  ASSERT_EQ(by_workers[0].sizes(), (std::vector<std::int64_t>{18, 3, 12, 12}));
  EXPECT_TRUE(by_workers[1].equal(by_workers[0]));
  EXPECT_TRUE(by_workers[2].equal(by_workers[0]));
  for (int i = 0; i < 9; ++i) EXPECT_FALSE(by_workers[0][i].equal(by_workers[0][9 + i]));
}

TEST_F(ImageFolders, DamagedFilesAreNamed) {
  const std::string png = png_of(ramp(30, 30));
  const std::string jpeg = jpeg_file(30, 30, JCS_RGB, pixels_of(ramp(30, 30)));
  folder.write("c/0.png", png);
  const std::string file = (folder / "c/1.jpg").string();
  for (const std::string& whole : {png, jpeg}) {
    for (const std::size_t size : {20, 30, 100, 200, 300}) {
      ASSERT_LT(size + 20, whole.size());
      folder.write("c/1.jpg", whole.substr(0, size));
      EXPECT_THAT(error(), HasSubstr(file + ": is a damaged or truncated ")) << size;
    }
  }
  folder.write("c/1.jpg", jpeg.substr(0, jpeg.size() - 3));
  EXPECT_THAT(error(), HasSubstr(file + ": is a damaged or truncated JPEG image: Premature end"));
  std::string flipped = png;
  flipped[60] = static_cast<char>(flipped[60] ^ 4);
  folder.write("c/1.jpg", flipped);
  EXPECT_THAT(error(), HasSubstr(file + ": is a damaged or truncated PNG image: "));
  folder.write("c/1.jpg", "");
  EXPECT_EQ(error(), file + ": offset 0: expected a JPEG or PNG image, found the end");
  folder.write("c/1.jpg", "<html>");
  EXPECT_EQ(error(), file + ": offset 0: expected a JPEG or PNG image, found 3c 68 74 6d");
  std::string vast = png;
  vast[16] = 0x7f;  // the width's first byte; its check sum is wrong then, too
  folder.write("c/1.jpg", vast);
  EXPECT_THAT(error(), HasSubstr(file + ": is "));
  std::filesystem::remove(file);
  std::filesystem::create_symlink("nowhere", file);
  EXPECT_EQ(error(), file + ": cannot open: No such file or directory");
}

TEST_F(ImageFolders, SizesThatTheFileCannotHoldAreRefused) {
  const std::string file = (folder / "c/0.jpg").string();
  const std::string refusal = file + ": is 16384x16384, expected at most ";
  // Memory for that size, 768 MiB, is not taken first.
  std::string jpeg = jpeg_file(30, 30, JCS_RGB, pixels_of(ramp(30, 30)));
  const std::size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, std::string("\x40\0\x40\0", 4));
  folder.write("c/0.jpg", jpeg);
  EXPECT_THAT(error(), HasSubstr(refusal));
  jpeg[frame + 1] = '\xc9';  // arithmetic coding
  folder.write("c/0.jpg", jpeg);
  EXPECT_THAT(error(), HasSubstr(refusal));
  folder.write("c/0.jpg", png_file(16384, 16384, PngColour::gray, ""));
  EXPECT_THAT(error(), HasSubstr(refusal));
  // An image of one colour is as small as a file of its size gets.
  folder.write("c/0.jpg",
               png_file(2000, 2000, PngColour::gray, std::string(2000 * 250, '\0'), "", 1));
  EXPECT_EQ(error(), "");
  folder.write("c/0.jpg", jpeg_file(2000, 2000, JCS_GRAYSCALE, std::string(2000 * 2000, '\0')));
  EXPECT_EQ(error(), "");
}

TEST_F(ImageFolders, FoldersWithoutClassesOrImagesAndSeveralSizesAreNamed) {
  EXPECT_EQ(error(), folder.path().string() + ": expected a folder for each class, found none");
  folder.write("c/0.png", png_of(ramp(3, 3)));
  folder.write("c/1.png", png_of(ramp(3, 4)));
  EXPECT_EQ(error(), (folder / "c/1.png").string() + ": is 4x3, expected 3x3 as " +
                         (folder / "c/0.png").string() +
                         "; set ImageFolderOptions::size to scale all images to one size");
  EXPECT_EQ(error({.size = 16}), "");
  folder.write("empty/readme.txt", "x");
  EXPECT_EQ(error(), (folder / "empty").string() +
                         ": expected .jpg, .jpeg or .png images of the class, found none");
  EXPECT_THROW(ImageFolder(folder / "none"), DataError);
  EXPECT_THROW(ImageFolder(folder / "c/0.png"), DataError);
  EXPECT_THROW(ImageFolder(folder.path(), {.size = -1}), InvalidArgument);
  EXPECT_THROW(ImageFolder(folder.path(), {.crop = ImageCrop::random}), InvalidArgument);
  EXPECT_THROW(ImageFolder(folder.path(), {.size = 5, .centre = 0}), InvalidArgument);
}

#else

TEST(ImageFolders, ABuildWithoutDecodersSaysSo) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<BackendUnavailable>([&] { ImageFolder(folder.path()); }),
              AllOf(HasSubstr("libjpeg"), HasSubstr("LOCKSTEP_WITH_IMAGES")));
}

#endif

TEST(ImageCrops, RandomPartsLieInsideAndCoverWhatTheyShould) {
  using detail::Crop;
  std::set<std::int64_t> heights;
  int flipped = 0;
  for (std::uint64_t bits = 0; bits < 1000; ++bits) {
    const Crop crop = detail::random_crop({.height = 300, .width = 400}, bits);
    EXPECT_EQ(crop, detail::random_crop({.height = 300, .width = 400}, bits));
    ASSERT_GE(crop.top, 0);
    ASSERT_GE(crop.left, 0);
    ASSERT_LE(crop.top + crop.size.height, 300);
    ASSERT_LE(crop.left + crop.size.width, 400);
    const auto height = static_cast<double>(crop.size.height);
    const auto width = static_cast<double>(crop.size.width);
    EXPECT_GE(height * width, 0.08 * 300 * 400 - 300);
    EXPECT_NEAR(width / height, 1.04, 0.31);
    heights.insert(crop.size.height);
    flipped += crop.flipped ? 1 : 0;
  }
  EXPECT_GT(heights.size(), 150u);
  EXPECT_NEAR(flipped, 500, 100);
  for (const detail::ImageSize size : {detail::ImageSize{1, 1}, {1, 900}, {900, 1}, {2, 3}}) {
    for (std::uint64_t bits = 0; bits < 50; ++bits) {
      const Crop crop = detail::random_crop(size, bits);
      EXPECT_GE(std::min({crop.top, crop.left, crop.size.height - 1, crop.size.width - 1}), 0);
      EXPECT_LE(crop.top + crop.size.height, size.height);
      EXPECT_LE(crop.left + crop.size.width, size.width);
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
