cmake_minimum_required(VERSION 3.22)  # its policies

# Runs a command, which must succeed, and sets output.
function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nended with ${result}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# Fails unless text contains expected.
function(expect text expected)
  string(FIND "${text}" "${expected}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "got:\n${text}\nexpected: ${expected}")
  endif()
endfunction()
