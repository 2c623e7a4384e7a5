#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <future>

#include "core/text.h"
#include "record/page/report.h"
#include "tests/matchers.h"
#include "tests/message_of.h"
#include "tests/record/page_fault.h"
#include "tests/temporary_folder.h"

namespace lockstep::inline v0_2::record {
namespace {

using namespace testing;
using namespace std::chrono_literals;

class Live : public ::testing::Test {
 protected:
  /// A client that has sent this.
  int connected(const std::string& request) const {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(report.port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::send(fd, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
    return fd;
  }
  std::string answer(const std::string& request) { return served(connected(request)); }
  /// All that this client gets. The server may answer or drop others before it.
  std::string served(int fd) {
    auto text = std::async(std::launch::async, received, fd);
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (text.wait_for(0s) != std::future_status::ready) {
      report.answer(5ms);
      if (std::chrono::steady_clock::now() < end) continue;
      ADD_FAILURE() << "a client was neither answered nor dropped";
      ::shutdown(fd, SHUT_RDWR);
    }
    return text.get();
  }
  /// All that the server sends until it closes the connection.
  static std::string received(int fd) {
    std::string text;
    std::array<char, 4096> buffer;
    for (ssize_t count = 0; (count = ::recv(fd, buffer.data(), buffer.size(), 0)) > 0;) {
      text.append(buffer.data(), static_cast<std::size_t>(count));
    }
    ::close(fd);
    return text;
  }
  static std::string request(const std::string& target) {
    return "GET " + target + " HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n";
  }

  const TemporaryFolder folder;
  LiveReport report{folder.path(), 0};
  const std::string query = report.address().substr(report.address().find('?'));
  const std::string get = request('/' + query);
};

TEST_F(Live, ReadsTheRunAgainForEachRequest) {
  EXPECT_THAT(answer(get), HasSubstr("The run has recorded nothing yet"));
  for (const char* loss : {"3", "2"}) {
    std::ofstream(folder / "metrics.jsonl", std::ios::app)
        << "{\"step\": " << loss << ", \"loss\": " << loss << "}\n";
    const auto text = answer(get);
    EXPECT_THAT(text, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(text, HasSubstr(std::string("loss at step ") + loss + ": " + loss));
    EXPECT_THAT(text, HasSubstr("http-equiv=\"refresh\""));
    const auto body = text.substr(text.find("\r\n\r\n") + 4);
    EXPECT_EQ(testing::page_fault(body), "");
    EXPECT_THAT(text, HasSubstr("Content-Length: " + std::to_string(body.size()) + "\r\n"));
  }
}

TEST_F(Live, RefusesAllElse) {
  EXPECT_THAT(answer(request("/etc/passwd" + query)), StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(answer("POST /" + query + " HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(answer("\r\n\r\n"), StartsWith("HTTP/1.1 403"));
}

TEST_F(Live, NeedsTheTokenOfItsAddress) {
  std::ofstream(folder / "metrics.jsonl") << "{\"step\": 1, \"secret\": 2}\n";
  auto other = query;
  other.back() = other.back() == '0' ? '1' : '0';
  for (const auto& wrong :
       {std::string(), std::string("?token="), std::string("?token"), other, query + '0',
        query.substr(0, query.size() - 1), "?a" + query.substr(1), "?a=b" + query}) {
    const auto text = answer(request('/' + wrong));
    EXPECT_THAT(text, StartsWith("HTTP/1.1 403 Forbidden\r\n")) << wrong;
    EXPECT_THAT(text,
                HasSubstr("Open the whole address that `lockstep report --serve` has printed"));
    EXPECT_THAT(text, Not(HasSubstr("secret")));
    EXPECT_THAT(text, Not(HasSubstr(query)));
  }
  EXPECT_THAT(query, ContainsRegex("^.token=[0-9a-f]{32}$"));
  EXPECT_NE(LiveReport(folder.path(), 0).address().substr(report.address().find('?')), query);
}

TEST_F(Live, ASlowClientDelaysNoOther) {
  // A page that fills all buffers between the server and a client that does not read.
  std::ofstream(folder / "metrics.jsonl")
      << "{\"step\": 1, \"" << std::string(4 << 20, 'x') << "\": 1}\n";
  const int silent = connected(""), half = connected("GET /" + query), unread = connected(get);
  EXPECT_FALSE(report.answer(500ms)) << "a client was answered or dropped";
  std::filesystem::remove(folder / "metrics.jsonl");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(answer(get), HasSubstr("The run has recorded nothing yet"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s) << "each of the others may take 5 s";

  const auto text = served(unread);
  const auto head = text.find("\r\n\r\n") + 4;
  EXPECT_THAT(text, HasSubstr(detail::concat("Content-Length: ", text.size() - head, "\r\n")));
  EXPECT_EQ(served(silent) + served(half), "") << "dropped";
}

TEST_F(Live, ManyClientsThatDoNotAskDelayNoOther) {
  std::vector<int> silent;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(connected(""));
    EXPECT_FALSE(report.answer(0ms));
  }
  EXPECT_THAT(answer(get), StartsWith("HTTP/1.1 200"));
  for (const int fd : silent) ::close(fd);
}

TEST_F(Live, DropsAClientThatDoesNotAsk) {
  EXPECT_EQ(answer(std::string(20000, 'x')), "");
  const int gone = connected("GET / HT");
  ::close(gone);
  EXPECT_TRUE(report.answer(10s));
  EXPECT_THAT(answer(get), StartsWith("HTTP/1.1 200"));
  EXPECT_FALSE(report.answer(1ms)) << "nobody asks";
}

TEST_F(Live, NeedsAFolderAndAFreePort) {
  EXPECT_THROW(LiveReport("/nonexistent/run", 0), InvalidArgument);
  EXPECT_THAT(message_of<Error>([&] { const LiveReport second(folder.path(), report.port()); }),
              HasSubstr("of 127.0.0.1: Address already in use. Choose another one "
                        "with --port."));
  EXPECT_EQ(report.address(), detail::concat("http://127.0.0.1:", report.port(), '/', query));
}

}  // namespace
}  // namespace lockstep::record
