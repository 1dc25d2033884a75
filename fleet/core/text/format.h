// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <fmt/base.h>

namespace fleet {

std::string vformat(fmt::string_view text, fmt::format_args args);

/// `format("{} of {}", 3, name)`: fmt's language, checked when compiled. The heavy part of fmt is
/// in format.cpp, so that this costs a source next to nothing. LibTorch brings these headers.
template <typename... T>
std::string format(fmt::format_string<T...> text, T&&... args) {
  return ::fleet::vformat(text.str, fmt::vargs<T...>{{args...}});
}

}  // namespace fleet
