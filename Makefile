# walsidecar: `make run` to see it work, `make test` to test it, `make help` for the rest.

GO       ?= go
BIN      := bin/walsidecar
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  := -s -w -X github.com/walsidecar/walsidecar/sidecar.Version=$(VERSION)

# Pinned here and nowhere else; the Go toolchain builds it on first use and caches it.
GOLANGCI := $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.DEFAULT_GOAL := help
.PHONY: run build test check lint race mutations model model-full fuzz soak soak-hour growth arm64 prlab bench bench-full s3 help

run: build ## build, start the sidecar, append and read back a first record; stop with Ctrl-C
	@tools/first-run $(BIN)

build: ## build bin/walsidecar, a static binary
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/walsidecar

test: ## run all tests
	$(GO) test ./...

check: lint test race ## what a change must pass: lint, tests, race detector

lint: ## go vet and golangci-lint
	$(GO) vet ./...
	$(GOLANGCI) run ./...
	cd bench && $(GO) vet ./... && $(GOLANGCI) run ./...

race: ## the rooms with goroutines, under the race detector
	$(GO) test -race -short $(shell tools/rooms race)

mutations: ## plant one bug after the other and see the simulator find it (minutes)
	WALSIDECAR_MUTATIONS=1 $(GO) test -count=1 -timeout 60m -v -run '^Test(PlantedBugsAreFound|VariantsKeepThePromises)$$' ./sim

model: ## check the models of recovery, takeover and manifest (docs/model) with Spin, small bounds
	docs/model/check.sh small

model-full: ## the same models with large bounds: minutes, and 4 GB of memory
	docs/model/check.sh full

fuzz: ## every fuzz target for FUZZTIME (10s)
	tools/fuzz $(or $(FUZZTIME),10s)

soak: ## what takes too long for every change: two processes on one ring for SOAK (10m), KILLS (1000) clients killed
	WALSIDECAR_TEST_STRESS=$(or $(SOAK),10m) $(GO) test -count=1 -timeout 60m -v -run '^TestStressTwoProcesses$$' ./shm
	WALSIDECAR_TEST_KILLS=$(or $(KILLS),1000) WALSIDECAR_TEST_SCRIBBLERS=100 $(GO) test -count=1 -timeout 60m -v -run '^TestP9_(KilledOnTheRing|ScribblingClients)$$' ./uds
	WALSIDECAR_TEST_KILLS=$(or $(KILLS),1000) $(GO) test -count=1 -timeout 60m -v -run '^TestP2_ClientsKilledOnTheRing$$' ./clients/go/suite
	WALSIDECAR_TEST_KILLS=60 WALSIDECAR_TEST_BYTES=1000000000 WALSIDECAR_TEST_OUTAGES=1 WALSIDECAR_TEST_SECONDS=60 $(GO) test -count=1 -timeout 60m -v \
	-run '^Test(P2_KillNineUnderLoadWithAStore|P2_AppendedIsReadHotColdAndByStore|P12_AnOutageFillsTheLogAndHeals|TheMemoryBudgetHolds)$$' ./e2e

growth: ## instructions per append do not grow with streams and sessions (valgrind); memory of each: minutes
	WALSIDECAR_TEST_GROWTH=1 $(GO) test -count=1 -timeout 30m -v -run '^Test(InstructionsPerAppend|MemoryOfClientsAndStreams)$$' ./stream ./shm ./session ./e2e

soak-hour: ## memory, descriptors, goroutines and latency of a sidecar stay flat for SOAK (1h)
	WALSIDECAR_TEST_SOAK=$(or $(SOAK),1h) $(GO) test -count=1 -timeout 0 -v -run '^TestNothingGrowsWithTime$$' ./e2e

arm64: ## cross-compile everything for arm64; run the unit tests where qemu-user is installed
	tools/arm64

prlab: ## tests with real reservations, NVMe and SCSI, in a guest; needs root or sudo once, to install QEMU
	tools/prlab/test --timeout 900 ./fence ./sidecar/doctor ./e2e -- -test.v

bench: ## ten minutes: walsidecar and the peers that are installed, on a device over memory (WALSIDECAR_BENCH_STORE: elsewhere)
	bench/build
	bench/bin/bench run -plan quick -out bench/results/quick.json
	bench/bin/bench report -in bench/results/quick.json -page docs/bench.md -plots docs/bench

bench-full: ## hours: every cell, over memory and over a file
	bench/build
	WALSIDECAR_BENCH_STORE=$${WALSIDECAR_BENCH_STORE:-ram,file:/var/tmp} bench/bin/bench run -plan full -out bench/results/full.json
	bench/bin/bench report -in bench/results/full.json -page docs/bench.md -plots docs/bench

s3: ## an S3 server for development on port 7070, in the foreground; says what to set
	@tools/s3dev/run

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
