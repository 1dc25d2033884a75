# SPDX-License-Identifier: Apache-2.0
# How every target here is compiled: warnings, sanitizers, ccache, and one precompiled header for all of them.

find_program(FLEET_CCACHE ccache)
if(FLEET_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # A precompiled header is only cached with these two. What a source includes is read from its dependency file (depend mode),
  # which spares a run of the preprocessor. Times of headers count: one that is edited while a source compiles is not cached.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros
    CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1 ${FLEET_CCACHE})
endif()

add_library(fleet_flags INTERFACE)
target_compile_options(fleet_flags INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -fPIC)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(fleet_flags INTERFACE -fpch-preprocess)  # for ccache; Clang does without
endif()
if(FLEET_WARNINGS_AS_ERRORS)
  target_compile_options(fleet_flags INTERFACE -Werror)
endif()
if(FLEET_SANITIZE)
  target_compile_options(fleet_flags INTERFACE
    -fsanitize=${FLEET_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  # What the checks add makes GCC take a moved-from std::function for uninitialised.
  target_compile_options(fleet_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(fleet_flags INTERFACE -fsanitize=${FLEET_SANITIZE})
  if(FLEET_SANITIZE MATCHES thread)
    target_compile_options(fleet_flags INTERFACE -Wno-tsan)  # LibTorch's headers have fences, which it cannot follow
    set(FLEET_TEST_ENVIRONMENT ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/cmake/sanitizers/tsan.supp")
  endif()
endif()

# fleet_join_sources(TARGET): several sources of a target as one translation unit: those of a UNITY_GROUP, or six at a time where none
# has one. LibTorch's headers cost each unit some seconds, torch/nn.h ten. A source stands alone where its local names are another's too
# (SKIP_UNITY_BUILD_INCLUSION) or where it has flags of its own. CMake's own unity builds do the same, but their sources hold absolute
# paths, so that ccache never finds what another clone has compiled.
function(fleet_join_sources target)
  get_target_property(join ${target} FLEET_JOIN_SOURCES)
  if(NOT join)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  set(alone "")
  set(groups "")
  set(count 0)
  foreach(source IN LISTS sources)
    set(is_alone OFF)
    foreach(property SKIP_UNITY_BUILD_INCLUSION COMPILE_OPTIONS COMPILE_DEFINITIONS COMPILE_FLAGS SKIP_PRECOMPILE_HEADERS HEADER_FILE_ONLY GENERATED)
      get_source_file_property(value ${source} ${property})
      if(value)
        set(is_alone ON)
      endif()
    endforeach()
    get_filename_component(path ${source} ABSOLUTE)
    file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${path})
    if(is_alone OR NOT source MATCHES "\\.cpp$" OR path MATCHES "^\\.\\./")
      list(APPEND alone ${source})
      continue()
    endif()
    get_source_file_property(group ${source} UNITY_GROUP)
    if(NOT group)
      math(EXPR group "${count} / 6")
      math(EXPR count "${count} + 1")
    endif()
    list(APPEND groups ${group})
    string(APPEND includes_${group} "#include \"${path}\"\n")
  endforeach()
  list(REMOVE_DUPLICATES groups)
  foreach(group IN LISTS groups)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/unity/${target}/unity_${group}.cpp)
    file(CONFIGURE OUTPUT ${file} CONTENT "${includes_${group}}" @ONLY)
    list(APPEND alone ${file})
  endforeach()
  set_property(TARGET ${target} PROPERTY SOURCES ${alone})
endfunction()

# fleet_target(NAME): flags, the shared precompiled header, and joined sources, unless its property FLEET_JOIN_SOURCES is OFF in
# the end. WITHOUT_TORCH: its sources include nothing of LibTorch, and do without the precompiled header.
function(fleet_target name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "WITHOUT_TORCH" "" "")
  set_target_properties(${name} PROPERTIES FLEET_JOIN_SOURCES ${FLEET_UNITY})
  if(FLEET_UNITY)
    cmake_language(EVAL CODE "cmake_language(DEFER CALL fleet_join_sources [[${name}]])")  # once its sources have their properties
  endif()
  target_link_libraries(${name} PRIVATE fleet_flags nlohmann_json::nlohmann_json)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  if(FLEET_PCH AND NOT arg_WITHOUT_TORCH AND NOT name STREQUAL "fleet_pch")
    target_precompile_headers(${name} REUSE_FROM fleet_pch)
  endif()
endfunction()

if(FLEET_PCH)
  add_library(fleet_pch OBJECT ${CMAKE_SOURCE_DIR}/cmake/pch.cpp)
  target_link_libraries(fleet_pch PRIVATE fleet::torch)
  fleet_target(fleet_pch)
  target_precompile_headers(fleet_pch PRIVATE <cmake/pch.h>)  # not an absolute path, for ccache
endif()
