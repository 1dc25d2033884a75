# SPDX-License-Identifier: Apache-2.0
# Installs into a fresh folder, moves that elsewhere, builds examples/consumer against it with nothing but
# CMAKE_PREFIX_PATH, and runs it alone and through the installed fleetrun.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

file(REMOVE_RECURSE ${SCRATCH})
run(text ${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/installed)
file(RENAME ${SCRATCH}/installed ${SCRATCH}/prefix)
foreach(internal fleet/comm/transport/backend.h fleet/comm/transport/gloo_declarations)
  if(EXISTS ${SCRATCH}/prefix/include/${internal})
    message(FATAL_ERROR "${internal} is installed, and is nobody's business outside")
  endif()
endforeach()
if(NCCL AND NOT EXISTS ${SCRATCH}/prefix/${LIBDIR}/libfleet_nccl.so)
  message(FATAL_ERROR "libfleet_nccl.so was built and is not installed")
endif()

# In the environment, because the command line is to be the one that examples/consumer names.
if(CCACHE)
  set(ENV{CMAKE_CXX_COMPILER_LAUNCHER} "${CCACHE}")
endif()
set(ENV{CMAKE_GENERATOR} "${GENERATOR}")
set(ENV{CXX} "${COMPILER}")
unset(ENV{CMAKE_PREFIX_PATH})
run(text ${CMAKE_COMMAND} -S ${SOURCE}/examples/consumer -B ${SCRATCH}/build -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix)
run(text ${CMAKE_COMMAND} --build ${SCRATCH}/build)

unset(ENV{LD_LIBRARY_PATH})
run(text ${SCRATCH}/build/consumer)
expect("${text}" "ranks 1: loss [0-9.]+ -> 0\\.0" "the consumer did not learn")
run(text ${CMAKE_COMMAND} -E chdir ${SCRATCH} ${SCRATCH}/prefix/${BINDIR}/fleetrun --nproc_per_node 2 ${SCRATCH}/build/consumer)
expect("${text}" "ranks 2: loss [0-9.]+ -> 0\\.0" "two ranks through the installed fleetrun did not learn")

# A package that cannot be used says why, in one sentence, and only stops those who require it.
file(MAKE_DIRECTORY ${SCRATCH}/old/include/ATen ${SCRATCH}/old/include/torch ${SCRATCH}/old/lib)
file(TOUCH ${SCRATCH}/old/include/ATen/ATen.h ${SCRATCH}/old/lib/libtorch_cpu.so)
file(WRITE ${SCRATCH}/old/include/torch/version.h
  "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 99\n#define TORCH_VERSION_PATCH 0\n")
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE}/examples/consumer -B ${SCRATCH}/build_old
  "-DCMAKE_PREFIX_PATH=${SCRATCH}/prefix;${SCRATCH}/old" RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
string(REGEX REPLACE "[ \n]+" " " text "${text}")
expect("${text}" "is 2\\.99\\.0, and this Fleet was built with ${TORCH_VERSION}" "another LibTorch than the one built with")
if(code EQUAL 0)
  message(FATAL_ERROR "another LibTorch than the one Fleet was built with was accepted")
endif()
