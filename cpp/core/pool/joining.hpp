#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace ortmulti {

/// Which requests a pool joins, besides what their shapes say: what is known of the model's outputs, and what runs have
/// shown. No clock, no lock.
class Joining {
 public:
  /// A key of requests that may be joined, as BatchTraits has it.
  using Key = std::string;
  /// Who asks; 0: nobody knows.
  using Caller = std::uint64_t;

  /// What has no rows, by its name, and why.
  using Apart = std::map<std::string, std::string>;

  /// What is known of a model's outputs.
  struct Outputs {
    std::string model;             ///< Its name, for the log.
    Apart apart;                   ///< Requests that ask for one of these run alone.
    std::set<std::string> random;  ///< Those that change from run to run: their values are not compared.
    bool audits = false;           ///< Whether joint runs are compared with single ones.
    bool unproven = false;         ///< The graph does not show the rows of others: first all requests are compared.
  };
  void set_outputs(Outputs outputs);
  const Outputs& outputs() const noexcept { return outputs_; }
  /// Requests that give one of these inputs run alone.
  void set_apart_inputs(Apart inputs) { inputs_ = std::move(inputs); }
  /// Why a request with these names runs alone; null: it need not.
  const std::string* why_apart(const std::vector<const char*>& outputs, const std::vector<const char*>& inputs) const;
  /// Whether such a request may be joined, for all that runs have shown.
  bool joins(const Key& key, Caller caller) const;

  /// From now on these requests are not joined; or none of the model.
  void stop(const Key& key);
  void stop_all() noexcept { stopped_ = true; }

  /// Requests of a joint run that are to be run alone and compared.
  struct Audit {
    std::vector<std::size_t> which;
    Key shape;             ///< The first of which this is; empty: it stands for none.
    bool proves = false;   ///< It is one of the first runs, of which all are.
    bool in_time = false;  ///< Audits have taken no more than their share.

    /// Requests that are alike show nothing of what mixes them. Then the last one is compared if there is time.
    void are_alike(std::size_t requests);
  };
  /// After a joint run of so many requests, with so many rows, that took so long. Of the first joint run of each shape,
  /// and of each number of rows up to twice as many, one request is compared, and then of others as far as all audits
  /// take no more than `most_share` of the time of joint runs. The first ones do not wait for that, for two seconds in
  /// all.
  Audit audit(const Key& key, std::size_t requests, std::size_t rows, std::chrono::nanoseconds time);
  /// That was done, and took so long. What was asked for and not done is asked for again.
  void audited(const Audit& done, std::chrono::nanoseconds time);
  /// After an audit by which an answer depends on the size of its run, and not on the other requests in it: whether
  /// that is taken for rounding, by which a choice of two equal ones becomes the other. Of many it is not.
  bool is_rounding() noexcept { return 8 * ++by_size_ <= audits_ + 24; }

  /// After a joint run that failed though each of its requests succeeded by itself: whether it was not the first one in
  /// a row, so that stop() is due.
  bool failed_together(const Key& key);
  void succeeded_together(const Key& key) { failures_.erase(key); }
  /// What became of a request of a caller. Those of one whose requests fail again and again run alone.
  void note(Caller caller, bool failed);

  static constexpr double most_share = 0.005;

 private:
  static constexpr std::size_t most_kept = 1000;  // of shapes and callers without end, the first are forgotten
  static constexpr std::size_t always_audited = 32;
  // A run of another size may take seconds, where cuDNN plans its convolutions anew.
  static constexpr std::chrono::seconds always_for{2};
  static constexpr int proving_runs = 16;
  static constexpr int faulty = 4;  // a failure counts 2, an answer takes 1 off
  static constexpr int most_faults = 16;

  Outputs outputs_;
  Apart inputs_;
  int to_prove_ = 0;  // joint runs
  bool stopped_ = false;
  std::set<Key> stopped_keys_;
  std::map<Key, int> failures_;  // joint ones, in a row
  std::map<Caller, int> faults_;
  std::set<Key> seen_;  // the first shapes
  std::chrono::nanoseconds ran_{0};
  std::chrono::nanoseconds spent_{0};
  std::uint64_t audits_ = 0;
  std::uint64_t by_size_ = 0;
  std::uint64_t random_ = 1;
};

}  // namespace ortmulti
