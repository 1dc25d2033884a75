// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace fleet {

struct FieldList;

/// What a field of an options struct may hold.
using FieldValue = std::variant<bool, int, int64_t, float, double, std::string,
                                std::vector<std::string>, std::vector<int64_t>>;

/// A struct that has a list of its fields: `const FieldList& fields_of(const T*)` is declared
/// beside it, and defined in its .cpp.
template <typename T>
concept Reflected = requires(const T* object) {
  fields_of(object);
};

/// Any options struct, seen through its list: what reads one is a plain function.
struct OptionsView {
  template <Reflected T>
  OptionsView(const T& object) : object(&object), list(&fields_of(&object)) {}
  OptionsView(const void* object, const FieldList* list) : object(object), list(list) {}

  const void* object;
  const FieldList* list;
};

/// The same, to be written to.
struct OptionsRef {
  template <Reflected T>
  OptionsRef(T& object) : object(&object), list(&fields_of(&object)) {}

  operator OptionsView() const { return {object, list}; }

  void* object;
  const FieldList* list;
};

/// Bounds of a number; of every element, for a list of numbers.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool includes_low = true;
  bool includes_high = true;
};

/// One member of an options struct, as a file, a flag, the overview and the validation see it.
///
///   field<&LocalSgdConfigs::k_steps>("k_steps", "steps between two averages")
///       .at_least(1)
///       .in_unit("steps")
struct Field {
  std::string_view name;
  std::string_view help;
  std::string_view unit = {};
  Range range = {};
  std::vector<std::string_view> words = {};  ///< the only values that a text may have, if any
  bool shown_only_when_set = false;          ///< Fleet's own: not a row of the guide's overview

  // A leaf has get and set; a nested struct has view and ref.
  FieldValue (*get)(const void* owner) = nullptr;
  void (*set)(void* owner, const FieldValue& value) = nullptr;
  OptionsView (*view)(const void* owner) = nullptr;
  OptionsRef (*ref)(void* owner) = nullptr;

  bool nested() const { return view != nullptr; }

  Field&& at_least(double low) && { return bound(low, true, range.high, range.includes_high); }
  Field&& above(double low) && { return bound(low, false, range.high, range.includes_high); }
  Field&& at_most(double high) && { return bound(range.low, range.includes_low, high, true); }
  Field&& below(double high) && { return bound(range.low, range.includes_low, high, false); }
  Field&& one_of(std::vector<std::string_view> allowed) && {
    words = std::move(allowed);
    return std::move(*this);
  }
  Field&& in_unit(std::string_view name_of_unit) && {
    unit = name_of_unit;
    return std::move(*this);
  }
  Field&& beyond_guide() && {
    shown_only_when_set = true;
    return std::move(*this);
  }

 private:
  Field&& bound(double low, bool includes_low, double high, bool includes_high) {
    range = {low, high, includes_low, includes_high};
    return std::move(*this);
  }
};

/// A name that people will bring along from elsewhere, and why there is none here.
struct AbsentField {
  std::string_view name;
  std::string_view why;
};

/// All fields of an options struct, for files, flags, help and validation.
struct FieldList {
  std::string_view area;  ///< the area of errors: `[strategy] ...`
  std::vector<Field> fields;
  std::vector<AbsentField> absent = {};
};

namespace detail {
template <typename Owner, typename Type, Type Owner::*Member>
Field describe(std::string_view name, std::string_view help) {
  Field field{.name = name, .help = help};
  if constexpr (Reflected<Type>) {
    field.view = [](const void* owner) -> OptionsView {
      return static_cast<const Owner*>(owner)->*Member;
    };
    field.ref = [](void* owner) -> OptionsRef { return static_cast<Owner*>(owner)->*Member; };
  } else {
    field.get = [](const void* owner) -> FieldValue {
      return static_cast<const Owner*>(owner)->*Member;
    };
    field.set = [](void* owner, const FieldValue& value) {
      static_cast<Owner*>(owner)->*Member = std::get<Type>(value);
    };
  }
  return field;
}

template <typename Owner, typename Type>
Owner owner_of(Type Owner::*);
template <typename Owner, typename Type>
Type type_of(Type Owner::*);
}  // namespace detail

template <auto Member>
Field field(std::string_view name, std::string_view help) {
  return detail::describe<decltype(detail::owner_of(Member)), decltype(detail::type_of(Member)),
                          Member>(name, help);
}

/// A field that holds a value, wherever it is nested: `amp_configs.init_loss_scaling`.
struct Leaf {
  std::string path;
  const Field* field;
  void* owner;
};
/// A leaf of a nested options struct, for reading.
struct LeafView {
  std::string path;
  const Field* field;
  const void* owner;

  FieldValue value() const { return field->get(owner); }
};
std::vector<Leaf> leaves(OptionsRef options);
std::vector<LeafView> leaves(OptionsView options);

/// "a whole number": what a field that holds `like` expects, for errors and help.
std::string_view expected(const FieldValue& like);

/// What to say of a number that only is too large, or too small, for the type of a field that holds
/// `like`, with the limits of the type; empty for every other text.
std::string beyond_type(const FieldValue& like, std::string_view number);

/// The value as a person would type it: `32`, `0.8` (the shortest that means the same), `a,b`.
std::string to_text(const FieldValue& value);

/// "at least 1", "above 0 and below 1", "bf16 or fp16"; empty when the field takes anything.
std::string limits_text(const Field& field);

/// What is wrong with `value` for `field`; empty when nothing is.
std::string problem_with(const Field& field, const FieldValue& value);

/// Every value that is out of its limits, as "path: ...".
std::vector<std::string> out_of_limits(OptionsView options);

}  // namespace fleet
