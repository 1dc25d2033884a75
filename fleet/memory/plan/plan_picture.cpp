// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/plan_picture.h"

#include <algorithm>
#include <cmath>

#include "fleet/core/text/format.h"

namespace fleet::memory {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr const char* kColours[] = {"#6b7280", "#d97706", "#2563eb", "#059669"};
constexpr const char* kBudgetColour = "#dc2626";

// Where the numbers of one chart go on the page.
struct Frame {
  double left, top, width, height;
  double x_low, x_high, y_low, y_high;

  double x(double value) const { return left + (value - x_low) / (x_high - x_low) * width; }
  double y(double value) const {
    return top + height - (value - y_low) / (y_high - y_low) * height;
  }
};

// 1, 2 or 5 times a power of ten, so that about `count` of them make up the range.
double tick(double range, int count) {
  const double rough = range / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (rough <= step * power) return step * power;
  }
  return 10 * power;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  }
  return out;
}

std::string text(double x, double y, const char* anchor, const std::string& words,
                 const char* more = "") {
  return format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor,
                more, escaped(words));
}

std::string stroke(double x1, double y1, double x2, double y2, const char* colour,
                   const char* more = "") {
  return format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"{}/>\n",
                x1, y1, x2, y2, colour, more);
}

// Up to three significant digits, as many as the steps of an axis need.
std::string number(double value) { return format("{:.3g}", value); }

std::string y_axis(const Frame& frame, const std::string& title) {
  std::string out;
  const double step = tick(frame.y_high - frame.y_low, 6);
  for (double v = std::ceil(frame.y_low / step) * step; v <= frame.y_high; v += step) {
    out += stroke(frame.left, frame.y(v), frame.left + frame.width, frame.y(v), "#e5e7eb");
    out += text(frame.left - 8, frame.y(v) + 4, "end", number(v));
  }
  return out + text(frame.left, frame.top - 12, "start", title);
}

std::string box(const Frame& frame) {
  return format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" "
      "stroke=\"#9ca3af\"/>\n",
      frame.left, frame.top, frame.width, frame.height);
}

std::string polyline(const std::string& points, const char* colour) {
  return format(
      "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\" "
      "stroke-linejoin=\"round\"/>\n",
      points, colour);
}

std::string memory_over_time(const PlanPicture& picture) {
  int64_t highest = picture.budget;
  size_t ops = 1;
  for (const auto& line : picture.lines) {
    for (const auto* half : {&line.forward, &line.backward}) {
      for (const auto bytes : *half) highest = std::max(highest, bytes);
    }
    ops = std::max(ops, line.forward.size() + line.backward.size());
  }
  const Frame frame{
      70, 90, 560, 330, 0, static_cast<double>(ops), 0, 1.06 * static_cast<double>(highest) / kGiB};
  std::string out = y_axis(frame, "memory in use, GiB");
  const double half = frame.left + frame.width / 2;
  out += stroke(half, frame.top, half, frame.top + frame.height, "#9ca3af",
                " stroke-dasharray=\"2 3\"");
  out += text(frame.left + frame.width / 4, frame.top + frame.height + 20, "middle",
              "forward, op by op");
  out += text(frame.left + frame.width * 3 / 4, frame.top + frame.height + 20, "middle",
              "backward, op by op");
  for (size_t i = 0; i < picture.lines.size(); ++i) {
    const auto& line = picture.lines[i];
    std::string points;
    double place = 0;
    for (const auto* part : {&line.forward, &line.backward}) {
      for (const auto bytes : *part) {
        points +=
            format("{:.1f},{:.1f} ", frame.x(place), frame.y(static_cast<double>(bytes) / kGiB));
        ++place;
      }
    }
    out += polyline(points, kColours[i % std::size(kColours)]);
  }
  const double limit = frame.y(static_cast<double>(picture.budget) / kGiB);
  out += stroke(frame.left, limit, frame.left + frame.width, limit, kBudgetColour,
                " stroke-width=\"1.4\" stroke-dasharray=\"6 4\"");
  out += box(frame);
  // The legend has a row of its own below.
  double x = frame.left;
  const double y = frame.top + frame.height + 50;
  const auto entry = [&](const std::string& name, const char* colour, const char* more) {
    out += stroke(x, y - 4, x + 22, y - 4, colour, more);
    out += text(x + 28, y, "start", name);
    x += 28 + 7.2 * static_cast<double>(name.size()) + 22;
  };
  for (size_t i = 0; i < picture.lines.size(); ++i) {
    entry(picture.lines[i].name, kColours[i % std::size(kColours)], " stroke-width=\"2.4\"");
  }
  entry("budget", kBudgetColour, " stroke-width=\"2\" stroke-dasharray=\"6 4\"");
  return out;
}

std::string time_over_memory(const PlanPicture& picture) {
  if (picture.curve.size() < 2) return "";
  double low = INFINITY, high = 0, slow = 0, fast = INFINITY;
  for (const auto& point : picture.curve) {
    low = std::min(low, static_cast<double>(point.bytes) / kGiB);
    high = std::max(high, static_cast<double>(point.bytes) / kGiB);
    fast = std::min(fast, point.seconds);
    slow = std::max(slow, point.seconds);
  }
  const double room = 0.04 * (high - low);
  const auto percent = [&](double seconds) { return 100 * (seconds / fast - 1); };
  const Frame frame{740,        90,          400, 330,
                    low - room, high + room, 0,   std::max(1.15 * percent(slow), 1.0)};
  std::string out = y_axis(frame, "time added to a step, %");
  const double step = tick(frame.x_high - frame.x_low, 6);
  for (double v = std::ceil(frame.x_low / step) * step; v <= frame.x_high; v += step) {
    out += stroke(frame.x(v), frame.top, frame.x(v), frame.top + frame.height, "#e5e7eb");
    out += text(frame.x(v), frame.top + frame.height + 20, "middle", number(v));
  }
  out += text(frame.left + frame.width / 2, frame.top + frame.height + 46, "middle",
              "peak memory of the plan, GiB");
  std::string points;
  for (const auto& point : picture.curve) {
    const double x = frame.x(static_cast<double>(point.bytes) / kGiB);
    const double y = frame.y(percent(point.seconds));
    points += format("{:.1f},{:.1f} ", x, y);
    out += format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x, y, kColours[2]);
  }
  out += polyline(points, kColours[2]);
  const double budget = static_cast<double>(picture.budget) / kGiB;
  if (budget > frame.x_low && budget < frame.x_high) {
    out += stroke(frame.x(budget), frame.top, frame.x(budget), frame.top + frame.height,
                  kBudgetColour, " stroke-width=\"1.4\" stroke-dasharray=\"6 4\"");
  }
  return out + box(frame);
}

}  // namespace

std::string PlanPicture::svg() const {
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1180 500\" width=\"1180\" "
         "height=\"500\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#111827\">\n"
         "<rect width=\"1180\" height=\"500\" fill=\"#ffffff\"/>\n" +
         text(70, 40, "start", title, " font-size=\"17\"") + memory_over_time(*this) +
         time_over_memory(*this) + "</svg>\n";
}

std::vector<PlanPicture::Point> time_over_memory(const StepProfile& profile) {
  constexpr int kPoints = 16;
  const auto least = least_memory(profile);
  const auto range = keep_everything(profile).predicted_peak - least.predicted_peak;
  std::vector<PlanPicture::Point> points{{least.predicted_peak, least.predicted_seconds}};
  for (int i = 1; i <= kPoints; ++i) {
    const auto limit = least.predicted_peak + range * i / kPoints;
    if (const auto plan = make_plan(profile, {.budget = limit})) {
      points.push_back({plan->predicted_peak, plan->predicted_seconds});
    }
  }
  std::ranges::sort(points, {}, &PlanPicture::Point::bytes);
  // One that takes more memory and more time than another is no choice.
  std::vector<PlanPicture::Point> curve;
  for (const auto& point : points) {
    if (curve.empty() || point.seconds < curve.back().seconds) curve.push_back(point);
  }
  return curve;
}

std::string draw_plan(const StepProfile& profile, const Plan& plan, const std::string& title) {
  const PlanSimulation simulation(profile);
  PlanPicture picture{.title = title, .budget = plan.budget};
  const auto add = [&](const char* name, const Plan& way) {
    auto prediction = simulation.predict(way);
    picture.lines.push_back({name, std::move(prediction.forward), std::move(prediction.backward)});
  };
  add("plain", keep_everything(profile));
  add("planned", plan);
  picture.curve = time_over_memory(profile);
  return picture.svg();
}

}  // namespace fleet::memory
