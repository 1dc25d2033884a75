# SPDX-License-Identifier: Apache-2.0
# Finds LibTorch and defines fleet::torch. The wheel's own TorchConfig.cmake asks for a CUDA toolkit even when
# only the CPU library is linked, so the targets are made here, from the same files, for the wheel and for a
# LibTorch of the user's (zip or pip install) alike.
#
# Where it looks: Torch_DIR, then CMAKE_PREFIX_PATH, then FLEET_TORCH_HINTS: .deps/libtorch of this checkout, or,
# in an installed package, the LibTorch that Fleet was built with.

set(FLEET_TORCH_MINIMUM 2.15)

function(fleet_find_torch_root result)
  set(candidates)
  if(Torch_DIR)
    list(APPEND candidates "${Torch_DIR}/../../..")
  endif()
  set(env_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  string(REPLACE ":" ";" env_prefixes "${env_prefixes}")
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH env_prefixes)
    list(APPEND candidates "${prefix}" "${prefix}/torch" "${prefix}/libtorch" "${prefix}/../../..")
  endforeach()
  foreach(hint IN LISTS FLEET_TORCH_HINTS)
    list(APPEND candidates "${hint}")
  endforeach()
  foreach(candidate IN LISTS candidates)
    if(EXISTS "${candidate}/lib/libtorch_cpu.so" AND EXISTS "${candidate}/include/ATen/ATen.h")
      get_filename_component(candidate "${candidate}" REALPATH)
      set(${result} "${candidate}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${result} "" PARENT_SCOPE)
endfunction()

function(fleet_read_torch_version root result)
  foreach(header headeronly/version.h version.h)
    if(EXISTS "${root}/include/torch/${header}")
      file(STRINGS "${root}/include/torch/${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      if(lines)
        string(REGEX REPLACE "[^0-9]+([0-9]+)" "\\1." version "${lines}")
        string(REGEX MATCH "^[0-9]+\\.[0-9]+\\.[0-9]+" version "${version}")
        set(${result} "${version}" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
  set(${result} "0" PARENT_SCOPE)
endfunction()

# Why this LibTorch cannot be used, in one sentence; empty: it can. The caller reports it: the build stops, and an
# installed package is "not found".
set(FLEET_TORCH_PROBLEM "")
set(FLEET_TORCH_VERSION "")
fleet_find_torch_root(FLEET_TORCH_ROOT)
if(FLEET_TORCH_ROOT)
  fleet_read_torch_version("${FLEET_TORCH_ROOT}" FLEET_TORCH_VERSION)
endif()
if(NOT FLEET_TORCH_ROOT)
  set(FLEET_TORCH_PROBLEM "LibTorch was not found: pass -DCMAKE_PREFIX_PATH=/where/libtorch/is${FLEET_TORCH_ADVICE}")
elseif(FLEET_TORCH_VERSION VERSION_LESS FLEET_TORCH_MINIMUM)
  set(FLEET_TORCH_PROBLEM
    "The LibTorch in ${FLEET_TORCH_ROOT} is ${FLEET_TORCH_VERSION}, and Fleet needs ${FLEET_TORCH_MINIMUM} or newer.")
elseif(NOT TARGET fleet::torch)
  add_library(fleet::torch INTERFACE IMPORTED GLOBAL)
  set_target_properties(fleet::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${FLEET_TORCH_ROOT}/include;${FLEET_TORCH_ROOT}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "${FLEET_TORCH_ROOT}/lib/libtorch_cpu.so;${FLEET_TORCH_ROOT}/lib/libc10.so"
    # libtorch_cpu.so finds its two CUDA libraries through its own RPATH when the program starts.
    INTERFACE_LINK_OPTIONS "LINKER:--unresolved-symbols=ignore-in-shared-libs;LINKER:--no-as-needed")
endif()
