# SPDX-License-Identifier: Apache-2.0
# The NCCL backend: a plug-in beside libfleet.so that is loaded when it is asked for, because whatever links
# libtorch_cuda.so starts only where all of CUDA's libraries are.
set(FLEET_NCCL_BUILT OFF)
if(FLEET_NCCL STREQUAL "OFF")
  return()
endif()

find_package(CUDAToolkit QUIET)
# Beside the wheel of LibTorch, NCCL's own wheel has it too.
find_path(FLEET_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${FLEET_TORCH_ROOT}/../nvidia/nccl/include)
mark_as_advanced(FLEET_NCCL_INCLUDE_DIR)
set(missing "")
if(NOT CUDAToolkit_FOUND)
  list(APPEND missing "a CUDA toolkit")
endif()
if(NOT FLEET_NCCL_INCLUDE_DIR)
  list(APPEND missing "nccl.h")
endif()
if(NOT EXISTS ${FLEET_TORCH_ROOT}/lib/libtorch_cuda.so)
  list(APPEND missing "libtorch_cuda.so in ${FLEET_TORCH_ROOT}/lib")
endif()
if(missing)
  list(JOIN missing ", " missing)
  if(FLEET_NCCL STREQUAL "AUTO")
    message(STATUS "NCCL backend: not built (missing: ${missing})")
    return()
  endif()
  message(FATAL_ERROR "FLEET_NCCL is ON and this is missing: ${missing}; install it, or leave FLEET_NCCL at AUTO.")
endif()
set(FLEET_NCCL_BUILT ON)
message(STATUS "NCCL backend: CUDA ${CUDAToolkit_VERSION}, nccl.h in ${FLEET_NCCL_INCLUDE_DIR}")

# Without the shared precompiled header: USE_C10D_NCCL and CUDA's headers belong to this source only.
add_library(fleet_nccl MODULE ${PROJECT_SOURCE_DIR}/fleet/comm/transport/nccl_plugin.cpp)
target_include_directories(fleet_nccl PRIVATE ${PROJECT_SOURCE_DIR})
target_include_directories(fleet_nccl SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${FLEET_NCCL_INCLUDE_DIR})
target_link_libraries(fleet_nccl PRIVATE
  fleet_flags fleet::torch ${FLEET_TORCH_ROOT}/lib/libtorch_cuda.so ${FLEET_TORCH_ROOT}/lib/libc10_cuda.so)
