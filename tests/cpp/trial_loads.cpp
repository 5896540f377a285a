#include "trial_loads.hpp"

#include <string>
#include <tuple>
#include <utility>

namespace ortmulti::tests {
namespace {

constexpr double us = 1e-6;
constexpr double ms = 1e-3;

TrialModel gpu(double host, double run, double row = 0, std::size_t cores = 16) {
  return {false, cores, 0, host, run, row, 0, 0};
}

TrialModel cpu(std::size_t cores, double run, double row, double alone, double slower = 0, std::size_t busy = 0) {
  return {true, cores, busy, 0, run, row, alone, slower};
}

}  // namespace

std::vector<TrialLoad> trial_loads_by_chance() {
  std::vector<TrialLoad> loads;
  for (const auto& [name, model, most] :
       {std::tuple("a GPU, rows that cost little", gpu(0.5 * ms, 2 * ms, 0.02 * ms), 12000.0),
        std::tuple("a GPU, rows that cost as much", gpu(0.5 * ms, 0.2 * ms, ms), 990.0),
        std::tuple("a CPU, rows that cost little", cpu(2, 1.8 * ms, 0.2 * ms, 0.3), 4300.0)}) {
    for (const int percent : {5, 30, 60, 90}) {
      for (const double delay : {0.0, 5 * ms}) {
        loads.push_back(
            {std::string(name) + ", " + std::to_string(percent) + "% of the most" + (delay > 0 ? ", a delay" : ""),
             model,
             {{0, 0}},
             0,
             0,
             32,
             delay,
             most * percent / 100,
             {1}});
      }
    }
  }
  return loads;
}

std::vector<TrialLoad> trial_loads() {
  using Clients = std::vector<std::pair<double, std::size_t>>;
  std::vector<TrialLoad> loads;
  const auto add = [&loads](std::string name, const TrialModel& model, Clients clients, double think = 0,
                            double spread = 0, std::size_t max_rows = 1, double max_delay = 0) {
    loads.push_back({std::move(name), model, std::move(clients), think, spread, max_rows, max_delay, 0, {1}});
  };

  // GPUs without batching.
  const TrialModel tiny = gpu(100 * us, 50 * us);
  const TrialModel launches = gpu(1.2 * ms, 0.3 * ms);  // many small kernels
  const TrialModel bert = gpu(0.5 * ms, 0.5 * ms);
  const TrialModel resnet = gpu(0.2 * ms, 2 * ms);
  const TrialModel diffusion = gpu(5 * ms, 300 * ms);
  for (const std::size_t clients : {1, 2, 4, 16, 64}) {
    add("a GPU, tiny, " + std::to_string(clients) + " clients", tiny, {{0, clients}});
    add("a GPU, many launches, " + std::to_string(clients) + " clients", launches, {{0, clients}});
    add("a GPU, BERT, " + std::to_string(clients) + " clients", bert, {{0, clients}});
  }
  add("a GPU, ResNet, 4 clients", resnet, {{0, 4}});
  add("a GPU, ResNet, 64 clients", resnet, {{0, 64}});
  add("a GPU, runs of 0.3 s, 8 clients", diffusion, {{0, 8}});
  add("a GPU, many launches, few cores", gpu(1.2 * ms, 0.3 * ms, 0, 4), {{0, 16}});
  add("a GPU, mixed lengths, 16 clients", bert, {{0, 16}}, 0, 0.9);
  add("a GPU, clients that think, 64", bert, {{0, 64}}, 20 * ms, 0.2);
  add("a GPU, from 1 client to 64", launches, {{0, 1}, {1, 64}});
  add("a GPU, from 4 clients to 64", launches, {{0, 4}, {1, 64}});
  add("a GPU, from 64 clients to 2", launches, {{0, 64}, {1, 2}});
  add("a GPU, a burst between", bert, {{0, 2}, {0.5, 64}, {1, 2}});

  // GPUs with batching.
  const TrialModel flat = gpu(0.5 * ms, 2 * ms, 0.02 * ms);
  const TrialModel linear = gpu(0.5 * ms, 0.2 * ms, 1 * ms);
  for (const std::size_t clients : {1, 8, 64}) {
    for (const double delay : {0.0, 2 * ms}) {
      const std::string rest = std::to_string(clients) + (delay > 0 ? " clients, a delay" : " clients");
      add("a GPU, rows that cost little, " + rest, flat, {{0, clients}}, 0, 0.1, 32, delay);
      add("a GPU, rows that cost as much, " + rest, linear, {{0, clients}}, 0, 0.1, 32, delay);
    }
  }
  add("a GPU, rows that cost little, 24 clients that think", flat, {{0, 24}}, 5 * ms, 0.1, 32, 2 * ms);
  for (const double delay : {0.0, 2 * ms}) {
    add(std::string("a GPU, rows that cost little, groups of 5 and 8") + (delay > 0 ? ", a delay" : ""), flat, {{0, 1}},
        0, 0, 32, delay);
    loads.back().at_once = {5, 8};
  }

  for (const auto& [before, after] : {std::pair<std::size_t, std::size_t>(1, 8), {1, 3}, {64, 3}, {3, 64}}) {
    for (const auto& [name, model] : {std::pair("little", flat), std::pair("as much", linear)}) {
      add("a GPU, rows that cost " + std::string(name) + ", from " + std::to_string(before) + " clients to " +
              std::to_string(after) + ", a delay",
          model, {{0, before}, {1, after}}, 0, 0.1, 32, 2 * ms);
    }
  }
  for (const std::size_t clients : {2, 3, 4}) {
    add("a GPU, rows that cost little, " + std::to_string(clients) + " clients, a delay", flat, {{0, clients}}, 0, 0.1,
        32, 2 * ms);
  }

  // CPUs.
  const TrialModel lstm = cpu(2, 0.25 * ms, 0.02 * ms, 0.8);
  const TrialModel encoder = cpu(2, 0.5 * ms, 9 * ms, 0.15);
  const TrialModel images = cpu(2, 1 * ms, 8 * ms, 0.1, 0.01);
  const TrialModel server = cpu(32, 1 * ms, 40 * ms, 0.1);
  for (const std::size_t clients : {1, 2, 16}) {
    add("a CPU, LSTM, " + std::to_string(clients) + " clients", lstm, {{0, clients}});
    add("a CPU, texts, " + std::to_string(clients) + " clients", encoder, {{0, clients}}, 0, 0.5);
  }
  add("a CPU, texts, 16 clients, busy", cpu(2, 0.5 * ms, 9 * ms, 0.15, 0, 2), {{0, 16}}, 0, 0.5);
  add("a CPU, 32 cores, 1 client", server, {{0, 1}});
  add("a CPU, 32 cores, 8 clients", server, {{0, 8}});
  add("a CPU, 32 cores, 64 clients", server, {{0, 64}});
  add("a CPU, from 1 client to 16", lstm, {{0, 1}, {2, 16}});
  add("a CPU, batches of LSTM, 16 clients", lstm, {{0, 16}}, 0, 0, 16);
  add("a CPU, batches of images, 16 clients", images, {{0, 16}}, 0, 0.05, 16);
  add("a CPU, batches of images, a delay", images, {{0, 16}}, 0, 0.05, 16, 2 * ms);
  return loads;
}

}  // namespace ortmulti::tests
