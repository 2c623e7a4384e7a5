#include "tests/record/browser.h"

#ifdef LOCKSTEP_PNG
#include <png.h>
#endif

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace lockstep::testing {
namespace {

#ifdef LOCKSTEP_PNG
Sight read_picture(const std::filesystem::path& path) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  Sight sight;
  if (png_image_begin_read_from_file(&image, path.c_str()) != 0) {
    image.format = PNG_FORMAT_RGB;
    sight.height = image.height;
    sight.width = image.width;
    sight.pixels.resize(sight.height * sight.width);
    static_assert(sizeof(Pixel) == 3);
    png_image_finish_read(&image, nullptr, sight.pixels.data(), 0, nullptr);
  }
  const std::string problem = image.message;
  png_image_free(&image);
  if (!problem.empty()) throw std::runtime_error(path.string() + ": " + problem);
  return sight;
}
#else
Sight read_picture(const std::filesystem::path&) {
  throw std::runtime_error("the tests were built without libpng");
}
#endif

}  // namespace

std::optional<std::string> browser() {
  for (const char* name : {"chromium-headless-shell", "chromium"}) {
    const std::string search = std::string("command -v ") + name + " >/dev/null 2>&1";
    if (std::system(search.c_str()) == 0) return name;
  }
  return std::nullopt;
}

Sight look_at(const std::filesystem::path& page, const std::filesystem::path& folder,
              std::size_t height, std::size_t width) {
  const auto home = folder / "browser";
  const auto picture = home / "picture.png";
  std::filesystem::create_directories(home);
  // Its own sandbox refuses root, and containers have little shared memory. It ends before its
  // children do: the pipe waits for them all.
  const std::string command =
      "cd '" + home.string() +
      "' && exec env -i PATH=\"$PATH\" HOME=. TMPDIR=. timeout -k 5 50 sh -c '" +
      browser().value() +
      " --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-breakpad"
      " --no-first-run --user-data-dir=profile --enable-logging=stderr --v=0 --hide-scrollbars"
      " --force-color-profile=srgb --window-size=" +
      std::to_string(width) + "," + std::to_string(height) + " --screenshot=picture.png \"file://" +
      page.string() + "\" </dev/null 2>&1 | cat >said'";
  const int status = std::system(command.c_str());
  std::ifstream in(home / "said");
  std::string all;
  std::vector<std::string> console;
  for (std::string line; std::getline(in, line); all += line + '\n') {
    // The rest is about buses, screens and sound that are not there.
    if (line.find(":CONSOLE") != line.npos) console.push_back(line);
  }
  if (status != 0 || !std::filesystem::exists(picture)) {
    throw std::runtime_error(browser().value() + " ended with " + std::to_string(status) + ":\n" +
                             all);
  }
  auto sight = read_picture(picture);
  sight.console = std::move(console);
  return sight;
}

}  // namespace lockstep::testing
