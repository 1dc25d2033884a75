# SPDX-License-Identifier: Apache-2.0
# JPEG::JPEG, which must be libjpeg-turbo: only that decodes a part of an image.
include(CheckCXXSourceCompiles)

find_package(JPEG)
if(JPEG_FOUND)
  set(CMAKE_REQUIRED_LIBRARIES JPEG::JPEG)
  check_cxx_source_compiles("
    #include <cstdio>
    #include <jpeglib.h>
    int main() { return jpeg_crop_scanline != nullptr && jpeg_skip_scanlines != nullptr && JCS_EXT_RGBX != 0 ? 0 : 1; }"
    FLEET_JPEG_IS_TURBO)
  unset(CMAKE_REQUIRED_LIBRARIES)
endif()
if(NOT JPEG_FOUND OR NOT FLEET_JPEG_IS_TURBO)
  message(FATAL_ERROR "libjpeg-turbo 1.5 or newer was not found: apt-get install libjpeg62-turbo-dev, or pass \
-DCMAKE_PREFIX_PATH=/where/libjpeg-turbo/is")
endif()
