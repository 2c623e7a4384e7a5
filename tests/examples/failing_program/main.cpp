// Ends as the examples do when something fails on one rank, on all, or between them:
// failing_program all, failing_program 1, failing_program mismatch, failing_program data
#include <stdexcept>
#include <string>

#include "program.h"

int main(int argc, char** argv) {
  std::string who;
  CLI::App app("Fails", "failing_program");
  app.add_option("who", who)->required();
  return program::run(app, argc, argv, [&](const lockstep::Group& world) {
    if (who == "all" || who == std::to_string(world.rank()))
      throw std::runtime_error("something else failed");
    if (who == "data" && world.rank() == 1) throw lockstep::DataError("images: missing");
    if (who != "mismatch" || world.rank() > 0) world.barrier().wait();
    world.all_reduce(world.empty({1})).wait();
  });
}
