// Cutting a batch into parts, one for each thread.
//
// A row's result does not depend on the rows it is computed with, so any cut gives the same
// numbers. One that goes through a request makes its parts wait for each other's keys and values.
#pragma once

#include <algorithm>
#include <vector>

#include "decoder.h"
#include "threads.h"

namespace omni {

// Fewer rows than this are not worth waking a thread for, or waiting for it in every layer.
constexpr int64_t kLeastRows = 4, kLeastCutRows = 16;

// Rows of a batch as a batch of its own.
struct Part {
  OmniBatch batch;
  int64_t first_request = 0;
  std::vector<int64_t> pools, prefix, counts;

  Part(const OmniBatch& whole, int64_t hidden, int64_t from, int64_t to) : batch(whole) {
    int64_t at = 0;
    for (int64_t r = 0; r < whole.requests; ++r) {
      const int64_t n = count_of(whole, r);
      const int64_t begin = std::max(from, at), end = std::min(to, at + n);
      if (begin < end) {
        if (counts.empty()) first_request = r;
        pools.push_back(whole.pools[r]);
        prefix.push_back(whole.prefix[r] + begin - at);
        counts.push_back(end - begin);
      }
      at += n;
    }
    batch.positions += from;
    batch.slots += from;
    batch.residual += from * hidden;
    batch.out += from * hidden;
    batch.rows = to - from;
    batch.requests = int64_t(counts.size());
    batch.pools = pools.data();
    batch.prefix = prefix.data();
    batch.row_counts = counts.data();
  }
  Part(Part&&) = default;  // moving a vector keeps its memory
};

struct Parts {
  std::vector<Part> parts;
  bool through_requests = false;
};

// The rest of a row's work, in keys that a row of the full layers attends to.
inline int64_t work_in_keys(const OmniDecoder& model) {
  int64_t weights = 0, per_key = 0;
  for (int64_t i = 0; i < model.layer_count; ++i) {
    const OmniLayer& l = model.layers[i];
    const int64_t widths = l.key_width + l.value_width;
    const int64_t of_keys = l.heads * widths;
    weights += model.hidden * (l.heads + l.kv_heads) * widths;
    weights += 3 * model.hidden * l.inner * (l.experts ? l.top_k : 1);
    if (l.window < 0)
      per_key += of_keys;
    else
      weights += l.window * of_keys;
  }
  return per_key ? weights / per_key : int64_t(1) << 40;
}

// At most ``threads`` parts of about equal work; ``whole`` requests are not cut.
inline Parts cut(const OmniDecoder& model, const OmniBatch& batch, int64_t threads, bool whole) {
  const int64_t least = whole || batch.requests >= threads ? kLeastRows : kLeastCutRows;
  const int64_t most = whole ? std::min(threads, batch.requests) : threads;
  const int64_t n = std::max<int64_t>(1, std::min(most, batch.rows / least));
  std::vector<int64_t> edges{0};
  std::vector<double> work{0};  // of the rows before each row
  const int64_t fixed = work_in_keys(model);
  for (int64_t r = 0; r < batch.requests; ++r) {
    const int64_t rows = count_of(batch, r), prefix = batch.prefix[r] + batch.prefix_offset;
    for (int64_t i = 0; i < rows; ++i) work.push_back(work.back() + double(fixed + prefix + i));
    edges.push_back(edges.back() + rows);
  }
  Parts found;
  int64_t from = 0;
  for (int64_t p = 1; p <= n; ++p) {
    int64_t to = batch.rows;
    if (p < n) {
      const double until = work.back() * double(p) / double(n);
      to = std::lower_bound(work.begin(), work.end(), until) - work.begin();
      // The edge of a request near by saves the waiting.
      const auto after = std::lower_bound(edges.begin(), edges.end(), to);
      const int64_t edge = after != edges.begin() && to - after[-1] < *after - to ? after[-1] : *after;
      if (whole || std::abs(edge - to) * 4 * n <= batch.rows) to = edge;
    }
    if (to <= from) continue;
    found.through_requests |= !std::binary_search(edges.begin(), edges.end(), to);
    found.parts.emplace_back(batch, model.hidden, from, to);
    from = to;
  }
  return found;
}

}  // namespace omni
