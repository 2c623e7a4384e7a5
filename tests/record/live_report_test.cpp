#include "record/live_report.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>

#include "core/text.h"
#include "lockstep/error.h"
#include "tests/record/page_fault.h"
#include "tests/temporary_folder.h"

namespace lockstep::inline v0_2::record {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using testing::TemporaryFolder;
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
  std::string answer(const std::string& request) {
    const int fd = connected(request);
    EXPECT_TRUE(report.answer(10s));
    std::string text;
    std::array<char, 4096> buffer;
    for (ssize_t count = 0; (count = ::recv(fd, buffer.data(), buffer.size(), 0)) > 0;) {
      text.append(buffer.data(), static_cast<std::size_t>(count));
    }
    ::close(fd);
    return text;
  }

  const TemporaryFolder folder;
  LiveReport report{folder.path(), 0};
};

const std::string get = "GET / HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n";

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
  const auto head = answer("HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(head, Not(HasSubstr("<html")));
}

TEST_F(Live, RefusesAllElse) {
  EXPECT_THAT(answer("GET /etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n"),
              StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(answer("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(answer("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"), StartsWith("HTTP/1.1 403"))
      << "a name that another site gives this address";
  EXPECT_THAT(answer("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 403"));
  EXPECT_THAT(answer("\r\n\r\n"), StartsWith("HTTP/1.1 403"));
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
  try {
    const LiveReport second(folder.path(), report.port());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("of 127.0.0.1: Address already in use. Choose another one "
                                        "with --port."));
  }
  EXPECT_EQ(report.address(), detail::concat("http://127.0.0.1:", report.port(), "/"));
}

}  // namespace
}  // namespace lockstep::record
