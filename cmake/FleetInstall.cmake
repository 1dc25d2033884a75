# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: the library, its public headers, the tools, and the package that
# `find_package(fleet)` reads.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fleet)

# Programs find the installed libfleet wherever the prefix is moved to, and the LibTorch they were built with.
file(RELATIVE_PATH from_bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set_target_properties(fleet PROPERTIES INSTALL_RPATH "$ORIGIN;${FLEET_TORCH_ROOT}/lib")
install(TARGETS fleet EXPORT fleetTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(FLEET_NCCL_BUILT)
  set_target_properties(fleet_nccl PROPERTIES INSTALL_RPATH "$ORIGIN;${FLEET_TORCH_ROOT}/lib")
  install(TARGETS fleet_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

set(tools fleet_tool fleetrun)
if(FLEET_BUILD_BENCH)
  list(APPEND tools fleet-bench)
endif()
set_target_properties(${tools} PROPERTIES INSTALL_RPATH "$ORIGIN/${from_bin_to_lib};${FLEET_TORCH_ROOT}/lib")
install(TARGETS ${tools} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# Left out: what only Fleet's own sources include.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/fleet DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h"
  PATTERN gloo_declarations EXCLUDE
  PATTERN backend.h EXCLUDE
  PATTERN block_cache.h EXCLUDE
  PATTERN direct_file.h EXCLUDE
  PATTERN extent_list.h EXCLUDE
  PATTERN nccl_plugin.h EXCLUDE
  PATTERN peer_watch.h EXCLUDE
  PATTERN resize_kernels.h EXCLUDE
  PATTERN safetensors_header.h EXCLUDE)

install(EXPORT fleetTargets NAMESPACE fleet:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/fleetConfig.cmake.in ${PROJECT_BINARY_DIR}/fleetConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Before 1.0, a new minor version may break what is built on it.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/fleetConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/fleetConfig.cmake
  ${PROJECT_BINARY_DIR}/fleetConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/FleetTorch.cmake
  DESTINATION ${package_dir})
