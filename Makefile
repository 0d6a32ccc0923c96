# The programs that the targets need (control plane, Flux's controllers, the pulumi CLI, linters, generators) are built
# from their Go modules, once per user, into ~/.cache/stack-controller ($STACK_CONTROLLER_CACHE). See tests/tools.

# Without cgo everywhere but for the race detector, so that the programs share what was compiled.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# What a test run needs; everything else is built when it is first used.
TEST_TOOLS := etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl coredns \
	pulumi pulumi-language-yaml source-controller notification-controller kustomize-controller helm ko \
	crane minio vault

# The race detector needs a C compiler; without one the tests run without it, and say so.
RACE ?= $(if $(shell command -v $(or $(CC),gcc)),-race)
# Two packages at a time: the heavy ones start a control plane each.
GO_TEST_FLAGS ?= $(RACE) -timeout=30m -p=2
# The package that takes longest begins first: it mostly waits, for pods and nodes.
FIRST := ./tests/pods
# How long "make fuzz" looks for trouble, per target.
FUZZTIME ?= 10s
# How many runs "make faults" has, of about 20 s each, what they follow from, and how many worlds play them at once.
RUNS ?= 60
SEED ?= 1
WORLDS ?= 3
# "make demo KEEP=1" leaves everything running.
KEEP ?=
# VERSION is that of a release (v1.2.3), IMAGE_REGISTRY where its images are pushed to (nowhere when it is empty), OUTPUT the
# directory for its files; .ci/images and .ci/release tell more.
VERSION ?= v0.0.0-dev
IMAGE_REGISTRY ?=
OUTPUT ?= dist
release_settings = VERSION='$(VERSION)' IMAGE_REGISTRY='$(IMAGE_REGISTRY)' OUTPUT='$(OUTPUT)'

# path prints the path of a tool and builds it first when it is not there.
path = $(shell go run ./tests/tools/install $(1))

##@ See it work

.PHONY: demo
demo: ## Show the whole system at work on this machine; KEEP=1 leaves it running
	@mkdir -p bin
	@echo 'Compiling the demo (a few minutes the first time) …'
	@CGO_ENABLED=0 go build -o bin/demo ./tests/demo
	@bin/demo $(if $(KEEP),-keep)

.PHONY: demo-clean
demo-clean: ## End and remove what "make demo" left running, or what a crash left
	@mkdir -p bin
	@CGO_ENABLED=0 go build -o bin/demo ./tests/demo
	@bin/demo -clean

##@ Build

.PHONY: build
build: ## Build bin/stack-controller and bin/agent
	CGO_ENABLED=0 go build -o bin/stack-controller .
	CGO_ENABLED=0 go build -o bin/agent ./cmd/agent

.PHONY: images
images: ## Build the images of VERSION for all platforms: into OUTPUT/images, or push them to IMAGE_REGISTRY
	@$(release_settings) KO='$(call path,ko)' OUTPUT='$(OUTPUT)/images' .ci/images

.PHONY: generate
generate: generate-api generate-proto generate-rbac generate-chart ## Generate deepcopy code, CRDs, RBAC, API reference, protobuf code and the chart's files

.PHONY: generate-api
generate-api:
	@generator='$(call path,controller-gen)'; reference='$(call path,crd-ref-docs)'; \
	cd api; \
	"$$generator" object paths=./...; \
	"$$generator" crd paths=./... output:crd:dir=../config/crd/bases; \
	(cd .. && go run ./config/crd/shrink config/crd/bases); \
	for group in pulumi auto; do \
		"$$reference" --log-level=ERROR --max-depth=20 --source-path=$$group --config=../docs/api/config.yaml \
			--renderer=markdown --output-path=../docs/api/v1/$$group.md; \
	done

# buf finds its plugins on PATH.
.PHONY: generate-proto
generate-proto:
	@tools='$(call path,protoc-gen-go protoc-gen-go-grpc buf)'; \
	for tool in $$tools; do PATH="$$(dirname $$tool):$$PATH"; done; export PATH; \
	buf generate

.PHONY: generate-rbac
generate-rbac:
	@'$(call path,controller-gen)' rbac:roleName=stack-controller paths='{.,./cmd/...,./internal/...}' output:rbac:dir=config/rbac

# A chart cannot read files outside of its directory.
.PHONY: generate-chart
generate-chart: generate-api generate-rbac
	@rm -rf config/chart/files; mkdir -p config/chart/files/crds; \
	cp config/crd/bases/*.yaml config/chart/files/crds/; \
	cp config/rbac/role.yaml config/rbac/edit_role.yaml config/rbac/view_role.yaml config/chart/files/

##@ Release

.PHONY: release
release: images release-manifests ## Write all of a release into OUTPUT: images, SBOMs, install.yaml, crds.yaml, chart, checksums
	@$(release_settings) .ci/release checksums

.PHONY: release-manifests
release-manifests: chart
	@$(release_settings) .ci/release manifests

.PHONY: chart
chart: ## Package the Helm chart of VERSION into OUTPUT
	@$(release_settings) .ci/release chart

##@ Check

.PHONY: test
test: install-test-tools ## Run all tests against real servers, with the race detector
	@$(if $(RACE),,echo 'no C compiler: testing without the race detector')
	@go run ./tests/cluster/up -check || echo 'testing without a cluster that runs pods'
	cd api && go test $(RACE) -timeout=5m ./...
	go test $(GO_TEST_FLAGS) $(FIRST) ./...

.PHONY: lint
lint: ## Check style and likely mistakes in both modules, and the length of files
	@linter='$(call path,golangci-lint)'; config="$$PWD/.golangci.yml"; \
	echo "golangci-lint: api"; (cd api && "$$linter" run --config="$$config" ./...); \
	echo "golangci-lint: ."; "$$linter" run --config="$$config" ./...
	@.ci/file-length

.PHONY: verify
verify: generate ## Fail when generated files or go.mod are not up to date
	@git diff --exit-code -- api config docs/api internal/agent/proto \
		|| { echo 'Generated files are stale: commit what "make generate" changed.'; exit 1; }
	@untracked=$$(git ls-files --others --exclude-standard -- api config docs/api internal/agent/proto); \
		[[ -z "$$untracked" ]] || { echo "Generated files are not committed: $$untracked"; exit 1; }
	go mod tidy -diff
	cd api && go mod tidy -diff
	@echo 'verify: everything is up to date'

.PHONY: bench
bench: ## Measure commits, first starts and idle cost beside a bare "pulumi up"; in pods too, as root
	CGO_ENABLED=0 go run ./tests/bench

.PHONY: faults
faults: ## Inject faults in RUNS runs that follow from SEED, in WORLDS worlds, and write docs/reliability.md from what comes of them
	go test ./tests/faults -run='^TestRandomFaults$$' -count=1 -v -timeout=0 \
		-args -runs='$(RUNS)' -seed='$(SEED)' -worlds='$(WORLDS)' -report='$(CURDIR)/docs/reliability.md'

.PHONY: pod-faults
pod-faults: ## The same, as root, for workspaces in pods on a real node, and docs/reliability-pods.md
	CGO_ENABLED=0 go test ./tests/podfaults -run=TestRandomFaults -count=1 -v -timeout=0 \
		-args -runs='$(RUNS)' -seed='$(SEED)' -report='$(CURDIR)/docs/reliability-pods.md'

.PHONY: fuzz
fuzz: ## Fuzz each target for FUZZTIME
	@.ci/fuzz '$(FUZZTIME)'

##@ Set up

.PHONY: cluster-up
cluster-up: ## Start a cluster with one node and Flux, as root, and leave it running
	@mkdir -p bin
	@CGO_ENABLED=0 go build -o bin/cluster ./tests/cluster/up
	@bin/cluster

.PHONY: cluster-down
cluster-down: ## End and remove what "make cluster-up" left running
	@mkdir -p bin
	@CGO_ENABLED=0 go build -o bin/cluster ./tests/cluster/up
	@bin/cluster -down

.PHONY: install-tools
install-tools: ## Build every tool that tests, linting and generation need
	go run ./tests/tools/install

.PHONY: install-test-tools
install-test-tools:
	@go run ./tests/tools/install $(TEST_TOOLS) >/dev/null

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
