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

/// Decides which requests a pool joins, beyond their shapes: by what is known of the model's outputs, and by what runs
/// have shown. It has no clock and no lock.
class Joining {
 public:
  /// A key of requests that may be joined, as BatchTraits has it.
  using Key = std::string;
  /// Who asks; 0: nobody knows.
  using Caller = std::uint64_t;

  /// Why a name has no rows, by the name.
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
  /// Why a request with these names runs alone; null: it may be joined.
  const std::string* why_apart(const std::vector<const char*>& outputs, const std::vector<const char*>& inputs) const;
  /// Whether runs so far allow to join such a request.
  bool joins(const Key& key, Caller caller) const;

  /// Ends joining requests of this key, or all requests of the model.
  void stop(const Key& key);
  void stop_all() noexcept { stopped_ = true; }

  /// Says which requests of a joint run have to run alone, to be compared.
  struct Audit {
    std::vector<std::size_t> which;
    Key shape;             ///< The shape whose first joint run this is; empty: none.
    bool proves = false;   ///< One of the first runs: all requests are compared.
    bool in_time = false;  ///< Audits have taken no more than their share.

    /// Notes that the requests are alike, which hides mixing. Only the last one is compared, if there is time.
    void are_alike(std::size_t requests);
  };
  /// Chooses audits after a joint run. Of the first joint run of each shape, and of each doubling of its rows, one
  /// request is compared. Later audits take at most a small share of the time of joint runs; the first ones may take
  /// two seconds in all before that holds.
  Audit audit(const Key& key, std::size_t requests, std::size_t rows, std::chrono::nanoseconds time);
  /// Notes that an audit was done, and how long it took. An audit that was not done comes again.
  void audited(const Audit& done, std::chrono::nanoseconds time);
  /// Notes an answer that depends on the size of its run, not on the other requests in it. Returns whether it counts as
  /// rounding, which may flip a choice between two equal values. Many such answers do not.
  bool is_rounding() noexcept { return 8 * ++by_size_ <= audits_ + 24; }

  /// Notes a joint run that failed although each request succeeded alone. Returns whether it was not the first in a
  /// row: then call stop().
  bool failed_together(const Key& key);
  void succeeded_together(const Key& key) { failures_.erase(key); }
  /// Notes what became of a caller's request. Requests of a caller that fail again and again run alone.
  void note(Caller caller, bool failed);

 private:
  static constexpr std::size_t max_kept = 1000;  // entries; a full table is emptied

  Outputs outputs_;
  Apart inputs_;
  std::size_t to_prove_ = 0;  // joint runs
  bool stopped_ = false;
  std::set<Key> stopped_keys_;
  std::map<Key, int> failures_;  // joint ones, in a row
  std::map<Caller, std::size_t> faults_;
  std::set<Key> seen_;  // the first shapes
  std::chrono::nanoseconds ran_{0};
  std::chrono::nanoseconds spent_{0};
  std::uint64_t audits_ = 0;
  std::uint64_t by_size_ = 0;
  std::uint64_t random_ = 1;
};

}  // namespace ortmulti
