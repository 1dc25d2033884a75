# SPDX-License-Identifier: Apache-2.0
# fleet_discover_suites(TARGET [PROPERTIES name value...]): makes each test suite of a GoogleTest program one test of ctest. Loading
# LibTorch costs a process half a second or more, which one process per suite pays once and one process per test
# (gtest_discover_tests) pays every time. Instances of parameterised suites, which are long, stay tests of their own.
#
# Run as a script (-P), it lists PROGRAM's suites into OUTPUT, which ctest includes.

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listing RESULT_VARIABLE result TIMEOUT 120)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${PROGRAM} does not list its tests: ${result}")
  endif()
  string(REPLACE ";" "\\;" listing "${listing}")
  string(REPLACE "\n" ";" lines "${listing}")
  string(REPLACE "|" ";" properties "${PROPERTIES}")
  list(JOIN properties " " properties)
  set(script "")
  function(add_entry name filter)
    string(APPEND script "add_test([=[${name}]=] [=[${PROGRAM}]=] [=[--gtest_filter=${filter}]=])\n")
    string(APPEND script "set_tests_properties([=[${name}]=] PROPERTIES ${properties})\n")
    set(script "${script}" PARENT_SCOPE)
  endfunction()
  foreach(line IN LISTS lines)
    string(REGEX REPLACE " *#.*$" "" entry "${line}")
    if(entry MATCHES "^([^ ]+)\\.$")
      set(suite "${CMAKE_MATCH_1}")
      if(NOT suite MATCHES "/")
        add_entry("${suite}" "${suite}.*")
      endif()
    elseif(entry MATCHES "^  ([^ ]+)$")
      set(test "${suite}.${CMAKE_MATCH_1}")
      if(suite MATCHES "/")
        add_entry("${test}" "${test}")
      endif()
    endif()
  endforeach()
  if(script STREQUAL "")
    message(FATAL_ERROR "${PROGRAM} has no tests")
  endif()
  file(WRITE ${OUTPUT} "${script}")
  return()
endif()

set(FLEET_TEST_SUITES_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

function(fleet_discover_suites target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "PROPERTIES")
  set(listing ${CMAKE_CURRENT_BINARY_DIR}/${target}_suites.cmake)
  set(quoted WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR} ${arg_PROPERTIES})
  list(TRANSFORM quoted REPLACE "(.+)" "[==[\\1]==]")
  list(JOIN quoted "|" quoted)
  add_custom_command(TARGET ${target} POST_BUILD BYPRODUCTS ${listing} VERBATIM
    COMMAND ${CMAKE_COMMAND} -D PROGRAM=$<TARGET_FILE:${target}> -D OUTPUT=${listing} -D "PROPERTIES=${quoted}" -P ${FLEET_TEST_SUITES_SCRIPT})
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake
    "if(EXISTS \"${listing}\")\n  include(\"${listing}\")\nelse()\n  add_test(${target}_NOT_BUILT ${target}_NOT_BUILT)\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake)
endfunction()
