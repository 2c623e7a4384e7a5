# Whether the Python module can be built: sets LOCKSTEP_PYTHON_PROBLEM to the reason why not, else
# LOCKSTEP_TORCH_PYTHON, LOCKSTEP_PYTHON_INCLUDE and LOCKSTEP_PYTHON_SUFFIX. The Python is the one that
# LibTorch was installed for.

set(LOCKSTEP_PYTHON_PROBLEM)
find_program(LOCKSTEP_TORCH_PYTHON NAMES python3 python HINTS "${TORCH_INSTALL_PREFIX}/../../../../bin"
             NO_DEFAULT_PATH DOC "The Python that has this LibTorch as its package torch")
if(NOT LOCKSTEP_TORCH_PYTHON)
  find_program(LOCKSTEP_TORCH_PYTHON NAMES python3 python)
endif()
if(NOT EXISTS "${TORCH_INSTALL_PREFIX}/lib/libtorch_python.so")
  set(LOCKSTEP_PYTHON_PROBLEM "LibTorch in ${TORCH_INSTALL_PREFIX} is not a Python package")
elseif(NOT LOCKSTEP_TORCH_PYTHON)
  set(LOCKSTEP_PYTHON_PROBLEM "there is no python3")
else()
  execute_process(
    COMMAND ${LOCKSTEP_TORCH_PYTHON} -c "import sysconfig
print(sysconfig.get_paths()['include'], sysconfig.get_config_var('EXT_SUFFIX'), sep=';')"
    OUTPUT_VARIABLE lockstep_python OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(LENGTH lockstep_python length)
  if(NOT length EQUAL 2)
    set(LOCKSTEP_PYTHON_PROBLEM "${LOCKSTEP_TORCH_PYTHON} does not start")
  else()
    list(GET lockstep_python 0 LOCKSTEP_PYTHON_INCLUDE)
    list(GET lockstep_python 1 LOCKSTEP_PYTHON_SUFFIX)
    if(NOT EXISTS "${LOCKSTEP_PYTHON_INCLUDE}/Python.h")
      set(LOCKSTEP_PYTHON_PROBLEM "there is no ${LOCKSTEP_PYTHON_INCLUDE}/Python.h (python3-dev)")
    endif()
  endif()
endif()
