#include "record/page/report.h"

#include <sys/stat.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>

#include "record/folder.h"
#include "record/page/chart.h"
#include "record/page/page.h"
#include "record/scalar.h"
#include "record/trace_file.h"
#include "tests/message_of.h"
#include "tests/other_numbers.h"
#include "tests/record/report_fixture.h"

namespace lockstep::inline v0_2::record {
namespace {

using namespace testing;

TEST_F(Report, ShowsAllThatARunRecorded) {
  std::string metrics;
  for (std::int64_t step = 10; step <= 30; step += 10) {
    const auto t = static_cast<double>(step);
    const std::vector<Scalar> scalars{{"epoch", t / 10},
                                      {"train_loss", 1 / t},
                                      {"test_loss", 2 / t},
                                      {"train_accuracy", 1 - 1 / t},
                                      {"images <a> second", t},
                                      {"my own/metric", t},
                                      {"steps", t},
                                      {"own constant", 7}};
    metrics += metrics_line(step, t, scalars, 1.7e9 + t);
  }
  write("metrics.jsonl", metrics + metrics_line(30, 31,
                                                std::vector<Scalar>{{"efficiency", 0.875},
                                                                    {"efficiency_least", 0.85},
                                                                    {"efficiency_most", 0.9}}));
  const RankInterval fast{
      .seconds = 2, .waiting = 1, .working = 0.5, .bytes = 1000, .dense_bytes = 50000};
  const RankInterval slow{.seconds = 2, .waiting = 0.2, .working = 0.3, .bytes = 3000};
  write_intervals({fast, slow});
  write_environment(folder.path(), {.ranks = 2,
                                    .hosts = {"one", "one"},
                                    .backend = "host",
                                    .strategy = "topk:0.01",
                                    .threads = 3});
  write("trace.json", "{}");
  const auto text = page();
  EXPECT_TRUE(remarks_.empty());
  for (const char* part :
       {"Loss</figcaption>", "Accuracy</figcaption>", "train_loss at step 20: 0.05<",
        "test_loss at step 30: 0.06667<", "images &lt;a&gt; second",
        "my own/metric at step 20: 20<", "steps at step 20: 20<", "<td>own constant</td><td>7</td>",
        "<dd>87.5 %<small>one rank's step alone over all ranks' step, 85 % to 90 %<",
        // 20 steps: 2 s computing and 1 s working of 4 s are 50 ms, 50 ms, 100 ms a step for rank
        // 0.
        "rank 0: compute 50 ms, communication 50 ms, waiting 100 ms a step",
        "rank 1: compute 150 ms, communication 30 ms, waiting 20 ms a step", "1 (slowest)",
        "computes 50 % longer than the mean", "50 times", "200 B", "200 ms",
        "<dd>50 %<small>of the ranks", "topk:0.01", "trace.json beside"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(AnyOf(HasSubstr("Remarks"), HasSubstr("wall_time"))));
}

TEST_F(Report, IsTheSameUnderEveryLocale) {
  write_environment(folder.path(), {.ranks = 2000,
                                    .hosts = {"one", "one"},
                                    .backend = "host",
                                    .strategy = "topk:0.01",
                                    .threads = 3000});
  const auto write_run = [&] {
    std::string metrics;
    for (std::int64_t step = 1000; step <= 30000; step += 1000) {
      const auto t = static_cast<double>(step);
      metrics += metrics_line(step, t, std::vector<Scalar>{{"train_loss", 1 / t}, {"rate", t / 8}});
    }
    write("metrics.jsonl", metrics + metrics_line(30000, 31, std::vector<Scalar>{{"e", 0.875}}));
    const RankInterval rank{
        .seconds = 2000.5, .waiting = 1.25, .working = 0.5, .bytes = 123456789, .dense_bytes = 1};
    write("intervals.jsonl", interval_line(interval_of(10000, {rank, rank})) +
                                 interval_line(interval_of(20000, {rank, rank})));
    TraceFile trace(folder / "trace.json", 0);
    trace.add(1000, "one", {{.begin = 1234567, .end = 98765432, .bytes = 1 << 20, .bucket = 2000}},
              12345);
    trace.commit();
  };
  const auto all = [&] {
    write_run();
    return std::vector<std::string>{content("metrics.jsonl"), content("intervals.jsonl"),
                                    content("trace.json"), page()};
  };
  const auto expected = all();
  const testing::OtherNumbers other;
  const auto got = all();
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(got[i], expected[i]) << i;
  EXPECT_THAT(got[2], HasSubstr("\"ts\": 1234.567"));
  EXPECT_EQ(number_text(1234567), "1234567");
  EXPECT_EQ(number_text(0.5), "0.5");
  EXPECT_EQ(bytes_text(1724500), "1.72 MB");
}

TEST_F(Report, TellsHostsApartAndShowsTheLaterValueOfAStepThatWasTakenAgain) {
  const auto line = [](std::int64_t step, double loss) {
    return metrics_line(step, 1, std::vector<Scalar>{{"train_loss", loss}});
  };
  write("metrics.jsonl", line(1, 5) + line(2, 4) + line(2, 3) + line(3, 2));
  write("intervals.jsonl", interval_line(interval_of(10, {{.seconds = 2, .waiting = 1},
                                                          {.seconds = 2},
                                                          {.seconds = 2, .waiting = 1},
                                                          {.seconds = 2, .waiting = 1}})));
  write_environment(folder.path(), {.ranks = 4, .hosts = {"one", "two&", "one", "three"}});
  const auto text = page();
  for (const char* part :
       {"<td>0 on one</td>", "<td>1 on two&amp; (slowest)</td>", "<td>2 on one</td>",
        "<td>3 on three</td>", "<dd>1<small>on two&amp;, computes 60 % longer than the mean",
        "<td>one (2 ranks), two&amp; (1 rank), three (1 rank)</td>", "train_loss at step 2: 3<"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("train_loss at step 2: 4<")));
}

TEST_F(Report, ToleratesATornLastLineAndSaysSo) {
  write("metrics.jsonl",
        "{\"step\": 1, \"train_loss\": 0.5}\nnonsense\n[1]\n{\"step\": 2, \"train");
  write("intervals.jsonl", interval_line(interval_of(1, {{.seconds = 1}})) +
                               interval_line(interval_of(2, {{.seconds = 1}, {.seconds = 1}})) +
                               "{\"st");
  write("environment.json", "{\"torn");
  const auto text = page();
  EXPECT_THAT(
      remarks_,
      ElementsAre(
          "metrics.jsonl: 2 lines are no record, and left out",
          "metrics.jsonl: the last line is torn, and left out",
          "intervals.jsonl: the last line is torn, and left out",
          "intervals.jsonl: 1 interval of another number of ranks than the last are left out",
          "environment.json: is no JSON object of at most 32 levels, and left out"));
  for (const auto& remark : remarks_) EXPECT_THAT(text, HasSubstr(remark));
  EXPECT_THAT(text, HasSubstr("train_loss at step 1: 0.5<"));
  write("environment.json", "[{\"command\": 1}]");
  page();
  EXPECT_EQ(remarks_.back(),
            "environment.json: is no JSON object of at most 32 levels, and left out");
}

TEST_F(Report, IsMadeOfARunThatHasHardlyBegunOrBrokenDown) {
  write("metrics.jsonl", "");
  write("environment.json", "{\"command\": [\"ddp_trainer\", \"10\", \"10\", \"\", \"a b\"]}");
  EXPECT_THAT(page(), AllOf(HasSubstr("has recorded no values yet"),
                            HasSubstr("<p class=\"quiet\">ddp_trainer 10 10 '' 'a b'</p>")));
  // Values without a number, equal values, an empty interval, one rank, an old --metrics file
  // without steps.
  write("metrics.jsonl",
        "{\"epoch\": 1, \"train_loss\": null}\n{\"epoch\": 2, \"train_loss\": null}\n");
  write("intervals.jsonl", interval_line({.ranks = {{}}}) + interval_line({.ranks = {{}}}));
  EXPECT_THAT(page(), HasSubstr("no number"));
  write("metrics.jsonl", "{\"loss\": 3}\n{\"loss\": 3}\n{\"loss\": null}\n{\"loss\": 1e308}\n");
  EXPECT_THAT(page(), HasSubstr("loss at step 2: 3<"));
}

TEST_F(Report, LeavesOutNumbersThatAreOutOfRange) {
  // A position that no int64 holds is none: the line's number stands for it.
  write("metrics.jsonl",
        "{\"step\": 1e300, \"loss\": 3}\n{\"step\": 18446744073709551615, \"loss\": 4}\n"
        "{\"step\": 3.0, \"loss\": 5}\n{\"step\": null, \"loss\": 6}\n"
        "{\"step\": 2.5, \"acc\": 1}\n{\"step\": 7, \"acc\": -1e308}\n"
        "{\"step\": 8, \"acc\": 1e308}\n");
  const auto intervals = [&](const std::string& steps, const std::string& seconds) {
    write("intervals.jsonl", "{\"step\": 1, \"steps\": " + steps +
                                 ", \"elapsed\": 1, \"ranks\": [{\"seconds\": " + seconds +
                                 ", \"waiting\": 0, \"working\": 0, \"bytes\": 1, "
                                 "\"dense_bytes\": 1}]}\n");
  };
  intervals("1", "2");
  auto text = page();
  EXPECT_TRUE(remarks_.empty());
  for (const char* part : {"loss at step 1: 3<", "loss at step 2: 4<", "loss at step 3: 5<",
                           "loss at step 4: 6<", "acc at step 2: 1<"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  for (const char* number : {"\"nan", "\"-nan", "\"inf", "\"-inf"}) {
    EXPECT_THAT(text, Not(HasSubstr(number)));
  }
  for (const auto& [steps, seconds] :
       {std::pair("1e300", "2"), std::pair("9223372036854775807", "2"), std::pair("-1", "2"),
        std::pair("1", "1e308"), std::pair("1", "-1e308")}) {
    intervals(steps, seconds);
    EXPECT_THAT(page(), HasSubstr("The run has ended no interval yet")) << steps << ' ' << seconds;
    EXPECT_THAT(remarks_, ElementsAre("intervals.jsonl: 1 line is no record, and left out"));
  }
}

TEST_F(Report, LeavesOutWhatIsNestedTooDeeply) {
  const auto deep = [](char open, int levels) {
    std::string text = "{\"a\": ";
    for (int i = 0; i < levels; ++i) text += open == '[' ? "[" : "{\"a\": ";
    text += '1';
    for (int i = 0; i < levels; ++i) text += open == '[' ? ']' : '}';
    return text + "}";
  };
  for (const char open : {'[', '{'}) {
    const auto text = deep(open, 1'000'000);
    write("metrics.jsonl", text + "\n{\"step\": 1, \"loss\": 2}\n");
    write("intervals.jsonl", text + "\n");
    write("environment.json", text);
    EXPECT_THAT(page(), HasSubstr("loss at step 1: 2<"));
    EXPECT_THAT(remarks_,
                ElementsAre("metrics.jsonl: 1 line is no record, and left out",
                            "intervals.jsonl: 1 line is no record, and left out",
                            "environment.json: is no JSON object of at most 32 levels, and left "
                            "out"));
    EXPECT_TRUE(event_files_of(folder.path()).empty());
  }
  write("environment.json", deep('[', 30));
  page();
  EXPECT_EQ(remarks_.size(), 2U);
}

TEST_F(Report, ReadsManyNamesInLinearTime) {
  const auto clocks = [&](std::size_t names) {
    std::string metrics = "{\"step\": 1", variables, hosts;
    for (std::size_t i = 0; i < names; ++i) {
      const auto name = std::to_string(i);
      metrics += ", \"m" + name + "\": " + name;
      variables += (i > 0 ? ", \"v" : "\"v") + name + "\": \"x\"";
      hosts += (i > 0 ? ", \"h" : "\"h") + name + "\"";
    }
    write("metrics.jsonl", metrics + "}\n");
    write("intervals.jsonl",
          interval_line(interval_of(1, std::vector<RankInterval>(names / 10, {.seconds = 1}))));
    write("environment.json",
          "{\"hosts\": [" + hosts + "], \"variables\": {" + variables + "}, " + variables + "}");
    const auto begin = std::clock();
    const auto run = read_run(folder.path());
    const auto read = std::clock();
    write_report(folder.path(), folder / "report.html");
    const auto end = std::clock();
    EXPECT_EQ(run.curves.size(), names);
    EXPECT_EQ(run.curves.at(777).first, "m777");
    EXPECT_EQ(run.environment.size(), 2 * names + 1);
    EXPECT_EQ(run.environment.at(5).first, "v4") << "in the order of the file";
    EXPECT_GT(std::filesystem::file_size(folder / "report.html"), 5 * names);
    return std::pair(read - begin, end - read);
  };
  const auto few = clocks(2'500), few_again = clocks(2'500);
  const auto many = clocks(40'000), many_again = clocks(40'000);
  // 16 times as many: 16 times the time, and 256 times if it is quadratic.
  EXPECT_LT(std::min(many.first, many_again.first), 32 * std::min(few.first, few_again.first));
  EXPECT_LT(std::min(many.second, many_again.second), 32 * std::min(few.second, few_again.second));
}

TEST_F(Report, OpensNothingButRegularFiles) {
  for (const char* name : {"intervals.jsonl", "environment.json", ".report.html.partial"}) {
    ASSERT_EQ(::mkfifo((folder / name).c_str(), 0600), 0);
  }
  write("metrics.jsonl", "{\"step\": 1, \"loss\": 2}\n");
  EXPECT_THAT(page(), HasSubstr("loss at step 1: 2<"));
  EXPECT_THAT(remarks_, ElementsAre("intervals.jsonl: is no regular file, and left out",
                                    "environment.json: is no regular file, and left out"));
  EXPECT_TRUE(event_files_of(folder.path()).empty());
  std::filesystem::remove(folder / "metrics.jsonl");
  ASSERT_EQ(::mkfifo((folder / "metrics.jsonl").c_str(), 0600), 0);
  EXPECT_THROW(page(), InvalidArgument);
}

TEST_F(Report, RefusesWhatHoldsNoRunOrCannotBeRead) {
  const auto complaint = [&](const std::filesystem::path& place) {
    return message_of<InvalidArgument>([&] { write_report(place, folder / "report.html"); });
  };
  EXPECT_THAT(complaint("/nonexistent/run"), HasSubstr("report: /nonexistent/run: no such folder"));
  EXPECT_THAT(complaint(folder.path()), HasSubstr("got no metrics.jsonl, expected the folder"));
  write("rank-0.out", "");
  EXPECT_THAT(complaint(folder.path()), HasSubstr("what ranks printed, the --log-dir of lockstep"));
  EXPECT_FALSE(std::filesystem::exists(folder / "report.html"));
  write("metrics.jsonl", "");
  EXPECT_THROW(write_report(folder.path(), "/nonexistent/page"), Error);
  std::filesystem::remove(folder / "metrics.jsonl");
  std::filesystem::create_symlink("/proc/self/mem", folder / "metrics.jsonl");
  EXPECT_THAT(message_of<Error>([&] { page(); }),
              HasSubstr("metrics.jsonl: cannot read: Input/output error"));
}

TEST_F(Report, CommandNamesThePage) {
  const std::string program = "'" LOCKSTEP_BINARY_DIR "/lockstep' report ";
  const auto run = [&](const std::string& arguments) {
    const auto at = "cd '" + folder.path().string() + "' && ";
    return WEXITSTATUS(std::system((at + program + arguments + " >out 2>err").c_str()));
  };
  EXPECT_EQ(run("."), 2);
  EXPECT_THAT(content("err"), HasSubstr("lockstep: report: .: got no metrics.jsonl"));
  EXPECT_EQ(run(""), 2);
  write("metrics.jsonl", "{\"step\": 1, \"loss\": 2}\n{\"st");
  EXPECT_EQ(run("."), 0);
  EXPECT_EQ(content("out"), "./report.html\n");
  EXPECT_EQ(content("err"),
            "lockstep: report: metrics.jsonl: the last line is torn, and left out\n");
  EXPECT_EQ(run(". -o elsewhere.html"), 0);
  EXPECT_THAT(content("elsewhere.html"), HasSubstr("loss at step 1: 2<"));
  EXPECT_EQ(run(". -o no/such/page"), 1);
  write("other/metrics.jsonl", "{\"step\": 1, \"loss\": 3}\n");
  EXPECT_EQ(run(". other"), 0);
  EXPECT_EQ(content("out"), "comparison.html\n");
  EXPECT_EQ(run(". --export csv run.csv"), 0);
  EXPECT_EQ(content("out"), "run.csv\n");
  EXPECT_THAT(content("run.csv"), HasSubstr("step,elapsed,wall_time,loss\r\n1,0,,2\r\n"));
  for (const auto& [arguments, complaint] :
       {std::pair(". other --export csv run.csv", "lockstep: report: got two folders"),
        std::pair(". other --serve", "lockstep: report: got two folders"),
        std::pair(". --export yaml x",
                  "lockstep: report: --export: got the format 'yaml', expected csv"),
        std::pair("nowhere --serve", "lockstep: report: nowhere: no such folder")}) {
    EXPECT_EQ(run(arguments), 2) << arguments;
    const auto error = content("err");
    EXPECT_THAT(error, HasSubstr(complaint));
    EXPECT_EQ(std::ranges::count(error, '\n'), 1) << error;
  }
  for (const char* arguments :
       {". --export csv", ". --port 80", ". --serve --export csv x", ". other third"}) {
    EXPECT_EQ(run(arguments), 2) << arguments;
  }
}

TEST_F(Report, CommandServesAtAnAddressWithAToken) {
  write("metrics.jsonl", "{\"step\": 1, \"loss\": 2}\n");
  const auto command = "echo $$; exec '" LOCKSTEP_BINARY_DIR "/lockstep' report '" +
                       folder.path().string() + "' --serve";
  const std::unique_ptr<FILE, int (*)(FILE*)> out(::popen(command.c_str(), "r"), ::pclose);
  int pid = 0;
  unsigned port = 0;
  std::array<char, 40> token{};
  ASSERT_EQ(std::fscanf(out.get(), "%d http://127.0.0.1:%u/?token=%32s follows", &pid, &port,
                        token.data()),
            3);
  ::kill(pid, SIGTERM);
  EXPECT_EQ(std::string(token.data()).find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(std::string(token.data()).size(), 32U);
}

}  // namespace
}  // namespace lockstep::record
