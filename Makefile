# `make help` lists everything. .ci/run defines the checks and their tools; the targets here
# call its phases.

PKG       ?= ./...
RUN       ?=
BENCH     ?= .
COUNT     ?= 1
FUZZTIME  ?= 10s
FUZZ      ?= .
SCHEDULES ?= 100000
SOAK      ?= 2m
SHOAL_CHAOS ?= 5m
SEED      ?= 7
export FUZZTIME FUZZ

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@echo 'Shoal. The targets, and the settings that they take:'
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## a local cluster of real processes, asked a few things
	go run ./cmd/shoal demo

.PHONY: build
build: ## the binaries, into bin/, static: a graphics card requires it
	CGO_ENABLED=0 go build -o bin/ ./cmd/...

.PHONY: release
release: ## archives for Linux, macOS and Windows, checksums, bills of materials, into dist/
	go run ./deploy/release

.PHONY: deb
deb: ## the Debian package, into dist/, by nfpm
	bash deploy/deb/build

.PHONY: bare
bare: ## each way of installing in a bare Debian, timed (as root, with debootstrap, after make release deb); STEPS='model machines'
	bash deploy/bare dist $(STEPS)

.PHONY: test
test: ## all tests, or those of PKG=./internal/engine/kvcache RUN=Snap
	go test $(if $(RUN),-run '$(RUN)') $(PKG)

.PHONY: check
check: ## exactly what CI runs: generate, gofmt, vet, lint, prose, policy, race, test
	bash .ci/run

.PHONY: generate gofmt vet lint prose vuln policy
generate: ## write generated code again (needs protoc); CI fails if that changes a file
	bash .ci/run generate
gofmt: ## name the files that gofmt would change
	bash .ci/run gofmt
vet: ## go vet, on this machine's architecture and on arm64
	bash .ci/run vet
lint: ## golangci-lint with .golangci.yml; the first time it is built (minutes)
	bash .ci/run lint
prose: ## the English of pages and comments, by Vale (.vale/); the first time it is built
	bash .ci/run prose
vuln: ## known vulnerabilities in the code that is called (asks a database)
	bash .ci/run vuln
policy: ## who may import whom, which files only decide
	bash .ci/run policy

.PHONY: race
race: ## tests under the race detector
	bash .ci/run race

.PHONY: stories
stories: ## the long tests of real processes that `go test ./...` leaves out (SHOAL_E2E=stories)
	bash .ci/run stories

.PHONY: sweeps
sweeps: ## every configuration of the sweeps, and a thousand cases of each property (SHOAL_E2E=long; hours)
	bash .ci/run sweeps

.PHONY: fuzz
fuzz: ## new inputs for every fuzzer, FUZZTIME=10s each; FUZZ=Header picks by name
	bash .ci/run fuzz

.PHONY: bench
bench: ## benchmarks: PKG=./internal/engine/tensor BENCH=MatMul COUNT=10 | tee new.out, then benchstat old.out new.out
	go test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) $(PKG)

.PHONY: bench-readme
bench-readme: build ## docs/benchmarks.md's table of the bundled model over nodes (5 minutes, alone)
	bash internal/bench/readme

.PHONY: bench-ratios
bench-ratios: ## one table: the shares of this machine's limits that decode and prefill reach (10 minutes, alone)
	go test -run '^$$' -bench Ratios -benchtime 1x -timeout 1h ./internal/bench

.PHONY: bench-cache
bench-cache: ## what keeping the cache costs: in place (EQUIP) compared with the published forms (2 minutes, alone)
	go test -run '^$$' -bench Cache -benchtime 1x ./internal/bench

.PHONY: clients
clients: ## real SDKs and programs against fry-tools (downloads 2 GB once): ARGS='openai llm', ARGS='--url http://HOST:PORT'
	python3 test/clients/run.py $(ARGS)

.PHONY: maskbench
maskbench: ## MaskBench's schemas: SCHEMAS=jsonschemabench/maskbench/data TOKENIZER=DIR ARGS='-named -open -any-order -step 10 -threads 2'
	go test -count 1 -v -timeout 3h -run MaskBench ./internal/bench -schemas $(abspath $(SCHEMAS)) $(if $(TOKENIZER),-tokenizer $(abspath $(TOKENIZER))) $(ARGS)

.PHONY: bench-peers
bench-peers: ## Shoal compared with other programs: IK=, LLAMA=, BENCH=, DLLAMA= their binaries, PAIRS='--only 1B' (internal/bench/peers/README.md)
	go build -o bin/ ./cmd/shoal
	python3 internal/bench/peers/models.py bin/peers $(MODELS)
	python3 internal/bench/peers/pairs.py --shoal bin/shoal --models bin/peers $(if $(IK),--ik $(IK)) $(if $(LLAMA),--llama $(LLAMA)) $(if $(BENCH),--bench $(BENCH)) $(if $(DLLAMA),--dllama $(DLLAMA)) $(PAIRS)

.PHONY: bench-versions
bench-versions: ## this tree compared with OLD=bin/shoal-old, in turn: decode, prefill, nodes (30 minutes, alone)
	go build -o bin/ ./cmd/shoal
	python3 internal/bench/peers/versions.py $(OLD) bin/shoal

.PHONY: bench-plan
bench-plan: ## how often the planner's choice of mapping and threads is the fastest (an hour, alone): PLAN='--models fry --seconds 600'
	go build -o bin/ ./cmd/shoal
	python3 internal/bench/peers/plan.py bin/shoal $(PLAN)

.PHONY: speculation
speculation: ## drafts change nothing: 75 prompts, rows of 1 to 9 tokens, every policy, 1, 3 and 4 nodes, kill -9 (10 minutes)
	SHOAL_E2E=full go test -count 1 -v -timeout 40m -run 'Specul|SmallModel|RejectedDrafts|TraceReplay' ./cluster
	SHOAL_E2E=full go test -count 1 -v -timeout 20m -run ChaosSpeculation ./test/cluster

.PHONY: chaos
chaos: ## real processes killed, frozen and cut off, again and again; SHOAL_SPECULATE=suffix:6: with drafts
	SHOAL_E2E=full go test -count 1 -v -timeout 60m -run '^TestClockJumps|^TestChaos|^TestFencing|^TestStandby|^TestExternalNATS|^TestReleaseRaces' ./test/cluster/...

.PHONY: chaos-wire
chaos-wire: ## the stories of chaos on bad networks: loss, jitter, separated racks, IPv6, names, a NAT (as root, 10 minutes)
	SHOAL_E2E=long go test -count 1 -v -timeout 40m -run '^TestChaosNetwork$$|^TestChaosAddresses$$|^TestNames$$|^TestNAT$$' ./test/cluster

.PHONY: chaos-jobs
chaos-jobs: ## 1000 jobs while nodes and coordinator are killed for SHOAL_CHAOS=5m; SEED=7
	SHOAL_CHAOS=$(SHOAL_CHAOS) SEED=$(SEED) go test -count 1 -v -timeout 60m -run JobsSurviveEverything ./test/cluster

.PHONY: soak
soak: ## 64 clients on four nodes for SOAK=2m; nothing may fail, leak or pass a budget; SHOAL_SPECULATE too
	SHOAL_SOAK=$(SOAK) go test -count 1 -v -timeout 60m -run Soak ./test/cluster

.PHONY: samebits
samebits: ## the same-bits tests in full: every node count, mapping, chunk, share and batch (long)
	SHOAL_E2E=full go test -count 1 -v -timeout 90m -run 'SameBits|Goldens' ./test/cluster

.PHONY: answers
answers: ## answers of every policy, architecture and type, compared bit by bit with those recorded (1 to 3 minutes); DEVICE=cuda:0 on a card
	$(if $(DEVICE),CGO_ENABLED=0) go test -count 1 -timeout 30m -v ./test/answers -only . $(if $(DEVICE),-device $(DEVICE))

.PHONY: mixed
mixed: ## builds of earlier revisions with this one in one cluster, real processes (4 minutes)
	SHOAL_E2E=long SHOAL_MIXED=1 go test -count 1 -v -timeout 30m -run TestMixedBuilds ./test/cluster

.PHONY: wire
wire: ## record the formats between processes for a new wire version (raise internal/wire/version.go first)
	go test -count 1 -run '^TestWire$$' $$(grep -rl --include='*_test.go' 'wiretest\.Check(' . | xargs -n1 dirname | sort -u) -record-wire

.PHONY: operator
operator: build ## docs/machines.md as an operator follows it, on a simulated network (as root, a minute); NEXT=bin/shoal-next upgrades to it
	go build -o bin/ ./test/wire
	bin/wire run test/wire/examples/machines.yaml -- test/wire/operator bin/shoal $(NEXT)

.PHONY: bench-wire
bench-wire: build ## this tree compared with OLD=bin/shoal-old on simulated networks (as root): WIRE='--shapes 1b,8b --seconds 450'
	CGO_ENABLED=0 go build -o bin/ ./test/wire
	bin/wire compare old=$(OLD) now=bin/shoal --out bin $(WIRE)

.PHONY: bench-wire-table
bench-wire-table: ## the table of docs/network.md: OLD=bin/shoal-old and this tree, 1B and 8B, 2 and 4 nodes (as root, at most 10 minutes)
	$(MAKE) bench-wire WIRE='--shapes 1b,8b:8 --rounds 1 --tokens 32 --seconds 570 $(WIRE)'

.PHONY: sim
sim: ## simulated clusters under every fault, one seed a schedule: SCHEDULES=100000
	SHOAL_SIM_SCHEDULES=$(SCHEDULES) go test -count 1 -v -timeout 0 -run TestSchedules ./internal/sim

.PHONY: clean
clean: ## remove bin/, dist/, test binaries and profiles; the tools stay
	rm -rf bin dist
	find . -name '*.test' -type f -delete
	find . -name '*.out' -type f -delete
