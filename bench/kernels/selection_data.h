#pragma once

#include <cmath>
#include <cstddef>
#include <random>
#include <string_view>
#include <vector>

namespace lockstep::bench {

/// Inputs of selections. A threshold estimated from samples may be wrong for each kind but the
/// first.
enum class SelectionData { normal, ties, zeros, ascending, sparse };

inline constexpr SelectionData all_selection_data[] = {
    SelectionData::normal, SelectionData::ties, SelectionData::zeros, SelectionData::ascending,
    SelectionData::sparse};

inline std::string_view name(SelectionData data) {
  switch (data) {
    case SelectionData::normal:
      return "normal";
    case SelectionData::ties:
      return "heavy ties";
    case SelectionData::zeros:
      return "all zeros";
    case SelectionData::ascending:
      return "sorted";
    case SelectionData::sparse:
      return "already sparse";
  }
  return "unknown";
}

/// Normal values, those rounded to whole numbers, nothing, the smallest first, or 1 at one place in
/// 200 and 0 elsewhere.
inline std::vector<float> selection_data(SelectionData kind, std::size_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> data(count);
  for (std::size_t i = 0; i < count; ++i) {
    switch (kind) {
      case SelectionData::normal:
        data[i] = normal(random);
        break;
      case SelectionData::ties:
        data[i] = std::round(normal(random));
        break;
      case SelectionData::zeros:
        break;
      case SelectionData::ascending:
        data[i] = static_cast<float>(i);
        break;
      case SelectionData::sparse:
        data[i] = random() % 200 == 0 ? 1.0f : 0.0f;
        break;
    }
  }
  return data;
}

}  // namespace lockstep::bench
