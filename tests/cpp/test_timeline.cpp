#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/timeline.hpp"

namespace ortmulti {
namespace {

std::int64_t this_thread() { return static_cast<std::int64_t>(syscall(SYS_gettid)); }

TEST(Timeline, KeepsSpansInTheOrderOfTheirEnds) {
  Timeline timeline;
  {
    const ScopedSpan outer(&timeline, "create", "cuda:1");
    const ScopedSpan inner(&timeline, "context");
  }
  const std::vector<Span> spans = timeline.spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].name, "context");
  EXPECT_EQ(spans[0].device, "");
  EXPECT_EQ(spans[1].name, "create");
  EXPECT_EQ(spans[1].device, "cuda:1");
  EXPECT_EQ(spans[0].thread, this_thread());
  EXPECT_LE(spans[1].start_ns, spans[0].start_ns);
  EXPECT_LE(spans[0].end_ns, spans[1].end_ns);
}

TEST(Timeline, KeepsTheFirstSpansAndTheLast) {
  Timeline timeline;
  constexpr auto kept = static_cast<std::int64_t>(Timeline::max_first + Timeline::max_last);
  for (std::int64_t i = 0; i < kept + 5; ++i) {
    timeline.add("run", i, i + 1);
  }
  const std::vector<Span> spans = timeline.spans();
  ASSERT_EQ(spans.size(), static_cast<std::size_t>(kept));
  EXPECT_EQ(spans.front().start_ns, 0);
  EXPECT_EQ(spans[Timeline::max_first - 1].start_ns, static_cast<std::int64_t>(Timeline::max_first) - 1);
  EXPECT_EQ(spans[Timeline::max_first].start_ns, static_cast<std::int64_t>(Timeline::max_first) + 5);
  EXPECT_EQ(spans.back().start_ns, kept + 4);
}

TEST(Timeline, SpanWithoutTimelineIsAllowed) {
  const std::int64_t before = steady_now_ns();
  {
    const ScopedSpan span(nullptr, "nobody listens");
  }
  EXPECT_GE(steady_now_ns(), before);
}

TEST(Timeline, KeepsEverySpanOfEveryThread) {
  constexpr int threads = 8;
  constexpr int spans_each = 500;
  Timeline timeline;
  std::vector<std::thread> writers;
  writers.reserve(threads);
  for (int i = 0; i < threads; ++i) {
    writers.emplace_back([&timeline, i] {
      for (int k = 0; k < spans_each; ++k) {
        const ScopedSpan span(&timeline, "run", "cuda:" + std::to_string(i));  // the text is gone before the span
      }
    });
  }
  // Read while they write: what is there is whole.
  for (const Span& span : timeline.spans()) {
    EXPECT_EQ(span.name, "run");
    EXPECT_LE(span.start_ns, span.end_ns);
  }
  for (std::thread& writer : writers) {
    writer.join();
  }
  const std::vector<Span> spans = timeline.spans();
  EXPECT_EQ(spans.size(), static_cast<std::size_t>(threads) * spans_each);
  for (int i = 0; i < threads; ++i) {
    const std::string device = "cuda:" + std::to_string(i);
    const auto of_device =
        std::count_if(spans.begin(), spans.end(), [&device](const Span& span) { return span.device == device; });
    EXPECT_EQ(of_device, spans_each);
  }
  std::set<std::int64_t> writers_seen;
  for (const Span& span : spans) {
    writers_seen.insert(span.thread);
  }
  EXPECT_EQ(writers_seen.count(this_thread()), 0U);
}

}  // namespace
}  // namespace ortmulti
