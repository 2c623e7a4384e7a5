# Writes BUILD_DIR/lockstep-gpu.tar.xz: PROGRAMS with the libraries that another machine may lack, and what
# tools/prove-gpu needs. Takes: SOURCE_DIR, BUILD_DIR, PROGRAMS, STRIP.
cmake_minimum_required(VERSION 3.22)  # its policies
set(root "${BUILD_DIR}/bundle/lockstep-gpu")
set(build "${root}/build/gpu")
file(REMOVE_RECURSE "${root}")
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${PROGRAMS} RESOLVED_DEPENDENCIES_VAR libraries
     PRE_EXCLUDE_REGEXES "^lib(c|m|dl|rt|pthread|gcc_s|gomp.*|stdc\\+\\+|c10.*|torch.*)\\.so" "^ld-linux")
file(INSTALL ${PROGRAMS} DESTINATION "${build}/bin" USE_SOURCE_PERMISSIONS)
file(INSTALL ${libraries} DESTINATION "${build}/lib" FOLLOW_SYMLINK_CHAIN)
file(GLOB files "${build}/bin/*" "${build}/lib/*")
execute_process(COMMAND ${STRIP} ${files} COMMAND_ERROR_IS_FATAL ANY)
foreach(file tools/prove-gpu bench/peers/torch_step.py tests/parity/reference.py examples/data/mnist)
  get_filename_component(folder "${root}/${file}" DIRECTORY)
  file(COPY "${SOURCE_DIR}/${file}" DESTINATION "${folder}")
endforeach()
execute_process(COMMAND git -C "${SOURCE_DIR}" describe --always --dirty OUTPUT_FILE "${build}/commit")
execute_process(COMMAND ${CMAKE_COMMAND} -E tar cJf "${BUILD_DIR}/lockstep-gpu.tar.xz" lockstep-gpu
                WORKING_DIRECTORY "${BUILD_DIR}/bundle" COMMAND_ERROR_IS_FATAL ANY)
file(SIZE "${BUILD_DIR}/lockstep-gpu.tar.xz" bytes)
math(EXPR megabytes "${bytes} / 1000000")
message(STATUS "${BUILD_DIR}/lockstep-gpu.tar.xz: ${megabytes} MB")
