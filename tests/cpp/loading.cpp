#include "loading.hpp"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <thread>
#include <utility>

#include "core/base/error.hpp"

namespace ortmulti::tests {

std::size_t WeightFiles::add_file(std::size_t size) {
  std::string content(size, '\0');
  std::ranges::generate(content, [this] { return static_cast<char>(random_()); });
  const std::string path = folder.write("weights" + std::to_string(contents_.size()), content);
  list.sources.push_back(file_source(path));
  contents_.push_back(std::move(content));
  return contents_.size() - 1;
}

void WeightFiles::add(std::size_t file, std::uint64_t offset, std::uint64_t length) {
  const std::string name = "weight" + std::to_string(list.weights.size());
  list.weights.push_back({name, 2, {static_cast<std::int64_t>(length)}, file, offset, length});
}

void WeightFiles::add_random(std::size_t files, std::size_t weights_per_file) {
  const auto below = [this](std::uint64_t limit) { return random_() % limit; };
  for (std::size_t i = 0; i < files; ++i) {
    const std::size_t file = add_file(200'000 + below(200'000));
    const std::uint64_t size = list.sources[file]->size();
    std::uint64_t at = below(3) * below(5000);
    for (std::size_t j = 0; j < weights_per_file && at < size; ++j) {
      const std::uint64_t sizes[] = {1 + below(64), 256, 1024 + below(3000), 4096, below(10) == 0 ? 60'000U : 2U};
      const std::uint64_t length = std::min(sizes[below(std::size(sizes))], size - at);
      add(file, at, length);
      if (below(8) == 0) {
        add(file, at, length);
      }
      if (below(12) == 0 && length > 1) {
        add(file, at + length / 2, length - length / 2);
      }
      const std::uint64_t gaps[] = {0, 0, 0, 1, 255, 256 - (at + length) % 256, 4096, 4097};
      at += length + gaps[below(std::size(gaps))];
    }
  }
  std::shuffle(list.weights.begin(), list.weights.end(), random_);
}

void WeightFiles::add_even(std::size_t count, std::size_t length) {
  const std::size_t file = add_file(count * length);
  for (std::size_t i = 0; i < count; ++i) {
    add(file, i * length, length);
  }
}

std::string WeightFiles::expected(std::size_t weight) const {
  const Weight& one = list.weights[weight];
  return contents_[one.source].substr(one.offset, one.length);
}

std::size_t open_files() {
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(descriptors), end(descriptors)));
}

Loading::Loading() : threads_before_(thread_count()), files_before_(open_files()) {
  fake.devices = 4;
  restart();
}

Loading::~Loading() {
  startup = nullptr;
  FakeCuda::reset();
}

void Loading::TearDown() {
  fake.on_call = {};
  fake.on_context = {};
  fake.on_copy = {};
  EXPECT_TRUE(nothing_left());
}

void Loading::restart() { startup = std::make_unique<CudaStartup>(&driver, "", "/nowhere"); }

std::vector<Loading::Result> Loading::load_each(const std::shared_ptr<const WeightPlan>& plan, const Request& request) {
  WeightLoader loader(*startup,
                      {plan, request.prefetch, request.options, request.fill, request.share, request.patience},
                      request.devices, request.timeline, request.keep_going);
  if (request.before) {
    request.before(loader);
  }
  std::vector<std::size_t> order = request.order;
  if (order.empty()) {
    order.resize(request.devices.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
  }
  std::vector<std::thread> threads;
  threads.reserve(order.size());
  for (const std::size_t index : order) {
    threads.emplace_back([&loader, index] { loader.bring_up(index); });
  }
  for (std::size_t i = 0; i < request.devices.size(); ++i) {
    loader.want(i);
  }
  std::vector<Result> results;
  for (std::size_t i = 0; i < request.devices.size(); ++i) {
    try {
      results.push_back({loader.allocated(i)});
      loader.wait_filled(i);
    } catch (const Error& error) {
      results.resize(i);
      results.push_back({nullptr, error.what(), std::current_exception()});
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (request.after) {
    request.after(loader);
  }
  return results;
}

Loading::Stores Loading::load(const std::shared_ptr<const WeightPlan>& plan, const Request& request) {
  Stores stores;
  Result failed;
  for (const Result& result : load_each(plan, request)) {
    if (result.error) {
      EXPECT_TRUE(!failed.error || failed.problem == result.problem) << failed.problem << "; " << result.problem;
      failed = result;
    }
    stores.push_back(result.store);
  }
  if (failed.error) {
    stores.clear();
    std::rethrow_exception(failed.error);
  }
  return stores;
}

testing::AssertionResult Loading::right(const WeightFiles& files, const Stores& stores) {
  for (const auto& store : stores) {
    for (std::size_t i = 0; i < files.list.weights.size(); ++i) {
      if (fake.read(store->address(i), files.list.weights[i].length) != files.expected(i)) {
        return testing::AssertionFailure() << to_string(store->device()) << ": weight " << i << " is wrong";
      }
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult Loading::nothing_left() {
  startup->join();
  fake.settle();
  const FakeCuda::Live live = fake.live();
  if (!live.nothing()) {
    return testing::AssertionFailure() << live.allocations << " allocations, " << live.registrations
                                       << " registrations, " << live.streams << " streams, " << live.events
                                       << " events, " << live.addresses << " addresses are left";
  }
  if (const auto misuses = fake.misuses(); !misuses.empty()) {
    return testing::AssertionFailure() << misuses.size() << " times: " << misuses.front();
  }
  if (!threads_become(threads_before_)) {
    return testing::AssertionFailure() << thread_count() - threads_before_ << " threads are left";
  }
  if (open_files() > files_before_) {
    return testing::AssertionFailure() << open_files() - files_before_ << " files are left open";
  }
  return testing::AssertionSuccess();
}

}  // namespace ortmulti::tests
