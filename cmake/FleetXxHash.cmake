# SPDX-License-Identifier: Apache-2.0
# xxHash::xxhash: CMake has no module for it.
find_path(FLEET_XXHASH_INCLUDE_DIR xxhash.h)
find_library(FLEET_XXHASH_LIBRARY xxhash)
mark_as_advanced(FLEET_XXHASH_INCLUDE_DIR FLEET_XXHASH_LIBRARY)
if(NOT FLEET_XXHASH_INCLUDE_DIR OR NOT FLEET_XXHASH_LIBRARY)
  message(FATAL_ERROR "libxxhash was not found: apt-get install libxxhash-dev, or pass -DCMAKE_PREFIX_PATH=/where/xxhash/is")
endif()
add_library(xxHash::xxhash UNKNOWN IMPORTED)
set_target_properties(xxHash::xxhash PROPERTIES
  IMPORTED_LOCATION ${FLEET_XXHASH_LIBRARY}
  INTERFACE_INCLUDE_DIRECTORIES ${FLEET_XXHASH_INCLUDE_DIR})
