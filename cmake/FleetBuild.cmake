# SPDX-License-Identifier: Apache-2.0
# How every target here is compiled: warnings, sanitizers, ccache, and one precompiled header for all of them.

find_program(FLEET_CCACHE ccache)
if(FLEET_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # A precompiled header is only cached when ccache may ignore its time stamps. What a source includes is read from its
  # dependency file (depend mode), which spares a run of the preprocessor.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
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

# fleet_target(NAME): flags, the shared precompiled header, and several sources as one translation unit: LibTorch's
# headers cost each unit some seconds, torch/nn.h ten. A source whose local names another one has too is taken out with
# SKIP_UNITY_BUILD_INCLUSION, as is by CMake itself one that has flags of its own. WITHOUT_TORCH: its sources include
# nothing of LibTorch, and do without the precompiled header.
function(fleet_target name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "WITHOUT_TORCH" "" "")
  if(FLEET_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
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
  target_precompile_headers(fleet_pch PRIVATE ${CMAKE_SOURCE_DIR}/cmake/pch.h)
endif()
