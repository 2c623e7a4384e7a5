#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lockstep::inline v0_2::launch {

/// Strings in the form that execv() and execve() take.
class Words {
 public:
  void add(std::string word) { words_.push_back(std::move(word)); }
  char* const* get() {
    pointers_.clear();
    for (auto& word : words_) pointers_.push_back(word.data());
    pointers_.push_back(nullptr);
    return pointers_.data();
  }

 private:
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

}  // namespace lockstep::launch
