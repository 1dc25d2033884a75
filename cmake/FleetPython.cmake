# SPDX-License-Identifier: Apache-2.0
# The torch that is installed in the Python for which the package is built, before FleetTorch looks anywhere else.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
set(FLEET_PYTHON_TORCH "$ENV{FLEET_PYTHON_TORCH}" CACHE PATH "The torch to build for, where it is not that of this Python")
if(NOT FLEET_PYTHON_TORCH)
  # -I: pip hides what is installed from the build it isolates, by a variable that this ignores.
  execute_process(
    COMMAND ${Python_EXECUTABLE} -I -c
      "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '', end='')"
    OUTPUT_VARIABLE FLEET_PYTHON_TORCH RESULT_VARIABLE result)
  if(result OR NOT FLEET_PYTHON_TORCH)
    message(FATAL_ERROR
      "This Python has no PyTorch: ${Python_EXECUTABLE}\n"
      "  fix: pip install 'torch==2.15.*', then build again. A tool that builds in an environment of its own does not see it: use "
      "`python -m build --no-isolation`, or set FLEET_PYTHON_TORCH to the folder of torch (where `python -c 'import torch; "
      "print(torch.__path__[0])'` says)")
  endif()
endif()
# Before CMake's own words for it, which name no package.
find_package(nlohmann_json QUIET)
if(NOT nlohmann_json_FOUND)
  message(FATAL_ERROR "nlohmann_json was not found\n  fix: apt-get install nlohmann-json3-dev, or pass -DCMAKE_PREFIX_PATH=/where/it/is")
endif()
list(PREPEND CMAKE_PREFIX_PATH ${FLEET_PYTHON_TORCH})
