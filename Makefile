# The short commands. Each finds or installs what is missing, so a fresh clone needs nothing else.
#
#   make train                       train the MNIST CNN on two local ranks
#   make test                        build everything, run every test
#   make build | lint                programs only | style checks
#   make bench | bench-peers         collectives of this machine | beside OpenMPI and PyTorch
#   make clean | distclean           remove build/ | and .venv too
#
# RANKS=4 and ARGS='--epochs 10 --data DIR' change what `make train` runs.

BUILD ?= build
RANKS ?= 2
ARGS ?=

configure = torch=$$(tools/bootstrap $(1)) && \
	cmake -S . -B '$(BUILD)' -G Ninja -DTorch_DIR="$$torch" $(2)
programs = -DLOCKSTEP_BUILD_TESTS=OFF
everything = -DLOCKSTEP_BUILD_TESTS=ON

.PHONY: help build train test bench bench-peers lint clean distclean

help:
	@sed -n '/^#   make/s/^#   /  /p; s/^# \(RANKS.*\)/  \1/p' Makefile

build:
	@$(call configure,build,$(programs))
	@cmake --build '$(BUILD)'

train:
	@$(call configure,build,$(programs))
	@cmake --build '$(BUILD)' --target lockstep_cli mnist_cnn
	@'$(BUILD)'/bin/lockstep run -n $(RANKS) '$(BUILD)'/bin/mnist_cnn $(ARGS)

test:
	@$(call configure,test,$(everything))
	@cmake --build '$(BUILD)'
	@ctest --test-dir '$(BUILD)' --output-on-failure

bench:
	@$(call configure,build,$(programs))
	@cmake --build '$(BUILD)' --target lockstep_cli
	@'$(BUILD)'/bin/lockstep bench all_reduce -n $(RANKS) $(ARGS)

bench-peers:
	@$(call configure,test,$(programs) -DLOCKSTEP_BUILD_PEERS=ON)
	@cmake --build '$(BUILD)'
	@bench/peers/compare.py --build '$(BUILD)' --jsonl '$(BUILD)/collectives.jsonl'
	@python=$$(dirname "$$(tools/bootstrap build 2>/dev/null)" | sed 's#/lib/python3.*#/bin/python3#'); \
	  bench/peers/steps.py --build '$(BUILD)' --python "$$python" --jsonl '$(BUILD)/steps.jsonl'

lint:
	@tools/bootstrap test >/dev/null
	@tools/lint

clean:
	rm -rf '$(BUILD)'

distclean: clean
	rm -rf .venv
