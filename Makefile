# The short commands. Each finds or installs what is missing, so a fresh clone needs nothing else.
#
#   make train                       train the MNIST CNN on two local ranks
#   make test                        build everything, run every test
#   make layer LAYER=comm            build and run the tests of one layer, a folder of src
#   make build | lint                programs only | style checks
#   make wheel                       a wheel of the Python module lockstep_torch, in build/
#   make deb                         Debian packages of the launcher and the library, in build/
#   make bench | bench-peers         collectives of this machine | everything beside other libraries
#   make docs                        the documentation as a site: build/docs/site/index.html
#   make clean | distclean           remove build/ | and all of .venv*
#
# RANKS=4 and ARGS='--epochs 10 --data DIR' change what `make train` runs; MNIST=DIR gives bench-peers
# the whole of MNIST.

BUILD ?= build
RANKS ?= 2
ARGS ?=

configure = torch=$$(tools/bootstrap $(1)) && \
	cmake -S . -B '$(BUILD)' -G Ninja -DTorch_DIR="$$torch" $(2)
programs = -DLOCKSTEP_BUILD_TESTS=OFF
everything = -DLOCKSTEP_BUILD_TESTS=ON

# ninja's progress: commands done of all, and the time since the build began.
export NINJA_STATUS ?= [%f/%t, %es] 

.PHONY: help build train next test layer wheel deb bench bench-peers docs lint clean distclean

help:
	@sed -n '/^#   make/s/^#   /  /p; /^# RANKS/,/^$$/s/^# /  /p' Makefile

build:
	@$(call configure,build,$(programs))
	@cmake --build '$(BUILD)'

train:
	@$(call configure,build,$(programs) --log-level=NOTICE)
	@echo 'building lockstep and mnist_cnn in $(BUILD); the first time takes some minutes'
	@cmake --build '$(BUILD)' --target lockstep_cli mnist_cnn
	@'$(BUILD)'/bin/lockstep run -n $(RANKS) '$(BUILD)'/bin/mnist_cnn $(ARGS)
	@$(MAKE) --no-print-directory next

# What `make train` ends with.
next:
	@printf '%s\n' '' 'Next:' \
	  "  make train RANKS=4 ARGS='--epochs 3 --strategy topk:0.01'" \
	  "  $(BUILD)/bin/lockstep run -n 2 $(BUILD)/bin/mnist_cnn --run-log log && $(BUILD)/bin/lockstep report log" \
	  "  $(BUILD)/bin/mnist_cnn --help"

test:
	@$(call configure,test,$(everything))
	@cmake --build '$(BUILD)'
	@ctest --test-dir '$(BUILD)' --output-on-failure --parallel 2

layer:
	@tools/layer '$(LAYER)' $(ARGS)

wheel:
	@$(call configure,build,$(programs) -DLOCKSTEP_BUILD_PYTHON=ON)
	@cmake --build '$(BUILD)' --target wheel

deb:
	@$(call configure,build,$(programs))
	@cmake --build '$(BUILD)' --target lockstep lockstep_c lockstep_cli
	@cpack --config '$(BUILD)/CPackConfig.cmake' -B '$(BUILD)'

bench:
	@$(call configure,build,$(programs))
	@cmake --build '$(BUILD)' --target lockstep_cli
	@'$(BUILD)'/bin/lockstep bench all_reduce -n $(RANKS) $(ARGS)

bench-peers:
	@intel=$$(tools/peers); \
	  $(call configure,test,$(programs) -DLOCKSTEP_BUILD_PEERS=ON "-DLOCKSTEP_INTEL_PREFIX=$$intel") && \
	  cmake --build '$(BUILD)' && \
	  "$$torch/../../../../../../../bin/python3" bench/peers/run.py --build '$(BUILD)' \
	    $${intel:+--intel "$$intel"} $(if $(MNIST),--data '$(MNIST)') \
	    --jsonl bench/peers/baseline.jsonl --docs docs/results.md $(ARGS) && \
	  bench/peers/chart.py

docs:
	@tools/docs

lint:
	@tools/bootstrap test >/dev/null
	@tools/lint

clean:
	rm -rf '$(BUILD)'

distclean: clean
	rm -rf .venv .venv-cuda .venv-peers .venv-recipes .venv-docs
