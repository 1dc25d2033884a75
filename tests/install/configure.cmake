# SPDX-License-Identifier: Apache-2.0
# Configures Fleet itself and looks at what it says about LibTorch, libjpeg-turbo and CUDA. CASE: too_old, missing,
# of_the_user, jpeg_missing or nccl_without_toolkit.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

function(configure code_result text_result)
  unset(ENV{CMAKE_PREFIX_PATH})
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${SCRATCH}/build -G ${GENERATOR} -DFLEET_BUILD_TESTS=OFF ${ARGN}
    RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  string(REGEX REPLACE "[ \n]+" " " text "${text}")  # CMake folds messages
  set(${code_result} ${code} PARENT_SCOPE)
  set(${text_result} "${text}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH})
file(REAL_PATH ${SCRATCH} SCRATCH)  # as messages name it
set(root ${SCRATCH}/torch)
if(CASE STREQUAL "too_old")
  file(MAKE_DIRECTORY ${root}/include/ATen ${root}/include/torch ${root}/lib)
  file(TOUCH ${root}/include/ATen/ATen.h ${root}/lib/libtorch_cpu.so ${root}/lib/libc10.so)
  file(WRITE ${root}/include/torch/version.h
    "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 4\n#define TORCH_VERSION_PATCH 1\n")
  configure(code text -DCMAKE_PREFIX_PATH=${root})
  expect_plain("${text}" "The LibTorch in ${root} is 2.4.1, and Fleet needs 2.15 or newer." "too old a LibTorch")
elseif(CASE STREQUAL "missing")
  configure(code text -DFLEET_TORCH_HINTS=)
  expect("${text}" "LibTorch was not found: pass -DCMAKE_PREFIX_PATH=[^ ]+, or run ./run.sh" "no LibTorch")
elseif(CASE STREQUAL "jpeg_missing")
  configure(code text -DCMAKE_PREFIX_PATH=${TORCH} -DCMAKE_DISABLE_FIND_PACKAGE_JPEG=ON)
  expect("${text}" "libjpeg-turbo 1.5 or newer was not found: apt-get install libjpeg62-turbo-dev" "no libjpeg-turbo")
elseif(CASE STREQUAL "nccl_without_toolkit")
  configure(code text -DCMAKE_PREFIX_PATH=${TORCH} -DFLEET_NCCL=ON -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
  expect("${text}" "FLEET_NCCL is ON and this is missing: a CUDA toolkit.*; install it" "NCCL without CUDA")
else()
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${TORCH}/include ${root}/include SYMBOLIC)
  file(CREATE_LINK ${TORCH}/lib ${root}/lib SYMBOLIC)
  configure(code text -DCMAKE_PREFIX_PATH=${root})
  expect_plain("${text}" "LibTorch ${TORCH_VERSION} in ${root} " "the user's LibTorch was not preferred")
endif()

if(CASE STREQUAL "of_the_user")
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "the user's LibTorch was refused:\n${text}")
  endif()
elseif(code EQUAL 0)
  message(FATAL_ERROR "this was accepted:\n${text}")
endif()
