// SPDX-License-Identifier: Apache-2.0
// norm(residual + dropout(x)), one row at a time: the sum stays in the first-level cache, where the
// mean, the variance (in a second pass, which is exact) and the result are computed. x is of type T,
// residual, y and the sum of type R.

namespace {

using fleet::ops::NormArgs;
using fleet::ops::NormBackwardArgs;

constexpr int64_t kMaxStackWidth = 4096;

/// Room for rows of a width that is not known: on the stack, or for wide rows on the heap.
template <int Rows>
class RowBuffer {
 public:
  explicit RowBuffer(int64_t width) : stride_(round_up(width, 16)) {
    if (stride_ > kMaxStackWidth / Rows) {
      data_ = static_cast<float*>(__builtin_malloc(sizeof(float) * (stride_ * Rows)));
      if (data_ == nullptr) __builtin_trap();
    }
  }
  ~RowBuffer() {
    if (data_ != stack_) __builtin_free(data_);
  }
  RowBuffer(const RowBuffer&) = delete;
  RowBuffer& operator=(const RowBuffer&) = delete;
  float* row(int64_t i) { return data_ + i * stride_; }

 private:
  alignas(64) float stack_[kMaxStackWidth];
  int64_t stride_;
  float* data_ = stack_;
};

template <typename T, typename R, bool Adds>
FLEET_INLINE void norm_rows(const NormArgs& args, int64_t begin, int64_t end) {
  const int64_t width = args.width;
  const RandomStream stream = *args.stream;
  RowBuffer<1> buffer(width);
  float* const row = buffer.row(0);
  const auto n = static_cast<float>(width);
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(args.x) + r * width;
    const R* residual = static_cast<const R*>(args.residual) + r * width;
    Floats total = {};
    for_row(stream, r / args.rows_per_sample, r % args.rows_per_sample * width, width,
            [&](int64_t i, Floats keep, int64_t left) __attribute__((always_inline)) {
              Floats value = load(x + i, left) * keep;
              if constexpr (Adds) value += load(residual + i, left);
              store(row + i, value, left);
              total += value;
            });
    const float mean = args.mean ? sum_of(total) / n : 0.0f;
    Floats squares[2] = {};
    int64_t i = 0;
    for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
      const Floats a = load(row + i) - mean, b = load(row + i + kLanes) - mean;
      squares[0] += a * a;
      squares[1] += b * b;
    }
    float square = sum_of(squares[0] + squares[1]);
    for (; i < width; ++i) square += (row[i] - mean) * (row[i] - mean);
    const float rstd = 1.0f / __builtin_sqrtf(square / n + args.eps);
    if (args.mean) args.mean[r] = mean;
    args.rstd[r] = rstd;
    R* y = static_cast<R*>(args.y) + r * width;
    R* sum = args.sum ? static_cast<R*>(args.sum) + r * width : nullptr;
    const auto write = [&](int64_t at, int64_t left) __attribute__((always_inline)) {
      const Floats before = load(row + at, left);
      if (sum) store(sum + at, before, left);
      Floats value = (before - mean) * rstd;
      if (args.weight) value *= load(args.weight + at, left);
      if (args.bias) value += load(args.bias + at, left);
      store(y + at, value, left);
    };
    for (i = 0; i + kLanes <= width; i += kLanes) write(i, kLanes);
    if (i < width) write(i, width - i);
  }
}

template <typename T, typename R>
void norm(const NormArgs& args, int64_t begin, int64_t end) {
  if (args.residual) {
    norm_rows<T, R, true>(args, begin, end);
  } else {
    norm_rows<T, R, false>(args, begin, end);
  }
}

/// What turns a saved row into the normalised one, h = saved * factor + shift: of an output the same
/// for all rows and other for each column, of a sum the reverse.
template <bool FromOutput>
struct Normalised {
  const float* factors;
  const float* shifts;
  Floats factor;
  Floats shift;

  FLEET_INLINE Floats operator()(Floats saved, int64_t i) const {
    if constexpr (FromOutput) return saved * load(factors + i) + load(shifts + i);
    return saved * factor + shift;
  }
};

constexpr int kNormRows = 4;  // whose gradients of weight and bias are added up in registers

// With h the normalised row and g = dy weight: d sum = rstd (g - mean(g) - h mean(g h)), without
// mean(g) for the root mean square. A first pass over the rows of a group takes the sums, and those
// of weight and bias; a second one, over rows that are in the cache, writes the gradients.
template <typename T, typename R, bool FromOutput>
FLEET_INLINE void norm_backward_rows(const NormBackwardArgs& args, int64_t begin, int64_t end) {
  const int64_t width = args.width;
  const int64_t whole = width / kLanes * kLanes;
  const RandomStream stream = *args.stream;
  const auto* dy_all = static_cast<const R*>(args.dy);
  const auto* saved_all = static_cast<const R*>(args.saved);
  auto* dresidual_all = static_cast<R*>(args.dresidual);
  auto* dx_all = static_cast<T*>(args.dx);
  // Padded, so that the last register of a row reads no further.
  RowBuffer<3> buffer(width);
  float* const factors = buffer.row(0);
  float* const shifts = buffer.row(1);
  float* const weights = buffer.row(2);
  for (int64_t i = 0; i < round_up(width, 16); ++i) {
    const float weight = i >= width ? 0.0f : args.weight ? args.weight[i] : 1.0f;
    weights[i] = weight;
    factors[i] = i < width ? 1.0f / weight : 0.0f;
    shifts[i] = i < width && args.bias ? -args.bias[i] * factors[i] : 0.0f;
  }
  const auto n = static_cast<float>(width);
  for (int64_t first = begin; first < end; first += kNormRows) {
    // The last group of a range may be short: then its last row is looked at several times, and
    // counts once.
    const int64_t rows = least(kNormRows, end - first);
    const R* dy[kNormRows];
    const R* saved[kNormRows];
    Normalised<FromOutput> normalised[kNormRows];
    Floats counts[kNormRows], sum_g[kNormRows] = {}, sum_gh[kNormRows] = {};
#pragma GCC unroll 4
    for (int64_t k = 0; k < kNormRows; ++k) {
      const int64_t r = first + least(k, rows - 1);
      dy[k] = dy_all + r * width;
      saved[k] = saved_all + r * width;
      const float rstd = args.rstd[r];
      const float mean = args.mean ? args.mean[r] : 0.0f;
      normalised[k] = {factors, shifts, splat(rstd), splat(-mean * rstd)};
      counts[k] = splat(k < rows ? 1.0f : 0.0f);
    }
    const auto read = [&](int64_t i, int64_t left) __attribute__((always_inline)) {
      Floats of_weight = {}, of_bias = {};
#pragma GCC unroll 4
      for (int64_t k = 0; k < kNormRows; ++k) {
        const Floats d = load(dy[k] + i, left);
        const Floats h = normalised[k](load(saved[k] + i, left), i);
        const Floats g = d * load(weights + i);
        sum_g[k] += g;
        sum_gh[k] += g * h;  // beyond the row's end g is 0
        const Floats counted = d * counts[k];
        of_bias += counted;
        of_weight += counted * h;
      }
      if (args.dweight) store(args.dweight + i, load(args.dweight + i, left) + of_weight, left);
      if (args.dbias) store(args.dbias + i, load(args.dbias + i, left) + of_bias, left);
    };
    int64_t i = 0;
    for (; i < whole; i += kLanes) read(i, kLanes);
    if (i < width) read(i, width - i);
    for (int64_t k = 0; k < rows; ++k) {
      const int64_t r = first + k;
      const float rstd = args.rstd[r];
      const float mean_g = args.mean ? sum_of(sum_g[k]) / n : 0.0f;
      const Floats of_h = splat(-sum_of(sum_gh[k]) / n * rstd), of_one = splat(-mean_g * rstd);
      const Normalised<FromOutput> at_row = normalised[k];
      for_row(stream, r / args.rows_per_sample, r % args.rows_per_sample * width, width,
              [&](int64_t at, Floats keep, int64_t left) __attribute__((always_inline)) {
                const Floats g = load(dy[k] + at, left) * load(weights + at);
                const Floats h = at_row(load(saved[k] + at, left), at);
                const Floats d = g * rstd + (h * of_h + of_one);
                if (dresidual_all) store(dresidual_all + r * width + at, d, left);
                store(dx_all + r * width + at, d * keep, left);
              });
    }
  }
}

template <typename T, typename R>
void norm_backward(const NormBackwardArgs& args, int64_t begin, int64_t end) {
  if (args.saved_is_output) {
    norm_backward_rows<T, R, true>(args, begin, end);
  } else {
    norm_backward_rows<T, R, false>(args, begin, end);
  }
}

}  // namespace
