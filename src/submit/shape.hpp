// Private to submit: how ranks spread over nodes, and what a node must give.
#pragma once
#include <string>
#include <vector>

#include "voltapile/submit/submit.hpp"

namespace voltapile {

struct JobShape {
  std::string partition;  // empty: the queue's default
  int ranks = 0, nodes = 0, per_node = 0;
  int gpus_per_node = 0;  // 0: the deck computes on CPUs
  int cpus_per_task = 0;  // 0: not asked for
  int64_t node_bytes = 0;
  double seconds = 0;         // time limit
  double margin_seconds = 0;  // before it, for the last checkpoint
  std::vector<std::string> notes;
};

// `kinds` is empty where nothing is known of the cluster. Errors as make_submission's.
JobShape job_shape(const Plan& plan, const SubmitOptions& options,
                   const std::vector<NodeKind>& kinds);

}  // namespace voltapile
