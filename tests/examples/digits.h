#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <random>
#include <string>

namespace lockstep::testing {

inline std::string big_endian(std::initializer_list<std::uint32_t> values) {
  std::string bytes;
  for (const std::uint32_t value : values)
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

/// Each class is a bright bar in a row of its own, among noise.
inline void write_digits(const std::filesystem::path& folder, const std::string& prefix, int count,
                         unsigned seed) {
  std::mt19937 random(seed);
  std::string images = big_endian({0x803, static_cast<std::uint32_t>(count), 28, 28});
  std::string labels = big_endian({0x801, static_cast<std::uint32_t>(count)});
  for (int i = 0; i < count; ++i) {
    const int label = static_cast<int>(random() % 10);
    labels += static_cast<char>(label);
    for (int pixel = 0; pixel < 28 * 28; ++pixel)
      images += static_cast<char>(pixel / 28 / 2 == label + 2 ? 250 : random() % 40);
  }
  std::ofstream(folder / (prefix + "-images-idx3-ubyte"), std::ios::binary) << images;
  std::ofstream(folder / (prefix + "-labels-idx1-ubyte"), std::ios::binary) << labels;
}

/// A folder with MNIST's four files of so many digits.
inline void write_digits(const std::filesystem::path& folder, int train, int test) {
  std::filesystem::create_directory(folder);
  write_digits(folder, "train", train, 1);
  write_digits(folder, "t10k", test, 2);
}

}  // namespace lockstep::testing
