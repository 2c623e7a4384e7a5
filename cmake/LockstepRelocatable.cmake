# Programs that run on another machine, with a LibTorch of the same version: they find LibTorch by the link
# `torch` beside bin, and other libraries in lib. The target `bundle` packs those that tools/prove-gpu runs.
set(LOCKSTEP_WITH_MPI OFF)  # its plugins have absolute paths
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib" "$ORIGIN/../torch/lib")
# DT_RPATH also serves the libraries of libraries. LibTorch may lack libraries of CUDA here.
add_link_options(-Wl,--disable-new-dtags -Wl,--allow-shlib-undefined)
file(CREATE_LINK ${TORCH_INSTALL_PREFIX} ${PROJECT_BINARY_DIR}/torch SYMBOLIC)

set(bundled_programs lockstep_cli test_device test_parity bench_train_step bench_device mnist_cnn)
list(TRANSFORM bundled_programs REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE bundled_files)
add_custom_target(bundle VERBATIM
  COMMAND ${CMAKE_COMMAND} "-DSOURCE_DIR=${PROJECT_SOURCE_DIR}" "-DBUILD_DIR=${PROJECT_BINARY_DIR}"
          "-DPROGRAMS=${bundled_files}" "-DSTRIP=${CMAKE_STRIP}" -P "${CMAKE_CURRENT_LIST_DIR}/bundle.cmake")
add_dependencies(bundle ${bundled_programs})
