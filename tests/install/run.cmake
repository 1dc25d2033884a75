# SPDX-License-Identifier: Apache-2.0
# run(RESULT command...): runs it, gives all that it printed, and stops the test when it fails.
function(run result)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "this ended with ${code}: ${command}\n${text}")
  endif()
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

# expect(TEXT regex why): stops the test when the text does not have it.
function(expect text regex why)
  if(NOT text MATCHES "${regex}")
    message(FATAL_ERROR "${why}: expected '${regex}' in\n${text}")
  endif()
endfunction()

# expect_plain(TEXT words why): the same for words that hold a path, in which a regular expression may find meaning.
function(expect_plain text words why)
  string(FIND "${text}" "${words}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${why}: expected '${words}' in\n${text}")
  endif()
endfunction()
