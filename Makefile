# The programs that the targets need (control plane, Flux's controllers, the pulumi CLI, linters, generators) are built
# from their Go modules, once per user, into ~/.cache/stack-controller ($STACK_CONTROLLER_CACHE). See tests/tools.

# Without cgo everywhere but for the race detector, so that the programs share what was compiled.

# The release of Go that everything is built with, see .ci/toolchain.
export GOTOOLCHAIN := $(shell sed -n 's/^toolchain //p' go.mod)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# What "make test" needs, what its tests in pods need besides, what "make lint" and "make verify" need, and "make test-all" besides.
TEST_TOOLS := gotestsum etcd kube-apiserver kube-controller-manager kubectl pulumi pulumi-language-yaml source-controller helm ko
NODE_TOOLS := kube-scheduler kube-proxy kubelet containerd containerd-shim-runc-v2 ctr coredns notification-controller
CHECK_TOOLS := golangci-lint actionlint controller-gen crd-ref-docs buf protoc-gen-go protoc-gen-go-grpc
MORE_TOOLS := pulumi-oldest pulumi-language-yaml-oldest kube-apiserver-oldest kube-controller-manager-oldest kustomize-controller helm-controller flux crane minio vault prometheus promtool spire-server spire-agent \
	flux-operator pulumi-language-nodejs pulumi-language-go pulumi-language-python pulumi-resource-kubernetes

# The race detector needs a C compiler; without one the tests run without it, and say so.
RACE ?= $(if $(shell command -v $(or $(CC),gcc)),true,false)
# Which groups of packages the tests run, as "bin/suite -help" lists them; all when it is empty.
ONLY ?=
# How long "make fuzz" looks for trouble, per target.
FUZZTIME ?= 10s
# Which targets it runs, as ".ci/fuzz list" prints them; all when it is empty.
TARGETS ?=
# How many runs "make faults" has, of about 20 s each, what they follow from, and how many environments they run in at once.
RUNS ?= 60
SEED ?= 1
ENVIRONMENTS ?= 3
# How many Stacks "make scale" has in the end.
STACKS ?= 2000
# From which revision "make upgrade" comes, for example the newest release.
FROM ?=
# "make demo KEEP=1" leaves everything running.
KEEP ?=
# VERSION is that of a release (v1.2.3), IMAGE_REGISTRY where it is pushed to (nowhere when it is empty) and what all its names begin
# with, OUTPUT the directory for its files; .ci/registry, .ci/images and .ci/release tell more. What is pushed is named with its
# digest everywhere. With CANDIDATE=1, what is pushed has no version as its name before .ci/name has run.
VERSION ?= v0.0.0-dev
IMAGE_REGISTRY ?=
CANDIDATE ?=
OUTPUT ?= dist
release_settings = VERSION='$(VERSION)' IMAGE_REGISTRY='$(IMAGE_REGISTRY)' CANDIDATE='$(CANDIDATE)' OUTPUT='$(OUTPUT)'

# path prints the path of a tool and builds it first when it is not there. Make before 4.4 does not pass exported variables to it.
path = $(shell GOTOOLCHAIN=$(GOTOOLCHAIN) go run ./tests/tools/install $(1))

##@ See it work

.PHONY: demo
demo: ## Show the whole system at work on this machine; KEEP=1 leaves it running
	@go run ./tests/e2e/demo/start $(if $(KEEP),-keep)

.PHONY: demo-clean
demo-clean: ## End and remove what "make demo" left running, and what killed demos and tests left
	@mkdir -p bin
	@CGO_ENABLED=0 go build -o bin/demo ./tests/e2e/demo
	@bin/demo -clean

##@ Build

.PHONY: build
build: cli ## Build bin/stack-controller, bin/agent and the command line
	CGO_ENABLED=0 go build -o bin/stack-controller .
	CGO_ENABLED=0 go build -o bin/agent ./cmd/agent

.PHONY: cli
cli: ## Build the command line, bin/flux-pulumi, and link bin/kubectl-pulumi to it
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w -X main.version=$(VERSION)' -o bin/flux-pulumi ./cmd/flux-pulumi
	ln -sf flux-pulumi bin/kubectl-pulumi

.PHONY: images
images: ## Build the images of VERSION for all platforms: into OUTPUT/images, or push them to IMAGE_REGISTRY
	@$(release_settings) KO='$(call path,ko)' .ci/images

.PHONY: generate
generate: generate-code generate-reasons ## Generate what is made from other files: code, CRDs, RBAC, API reference, the chart's files, and all about reasons

.PHONY: generate-code
generate-code: generate-api generate-proto generate-rbac generate-chart generate-install

# The constants come first, because other code needs them. What brings an Update back is a part of what brings its Stack back.
.PHONY: generate-reasons
generate-reasons: generate-constants
	@go test ./internal/controller/update -run TestWakersOfEachReasonAreWrittenDown -count=1 -update-wakers
	@go test ./internal/controller/stack -run TestWakersOfEachReasonAreWrittenDown -count=1 -update-wakers
	@go test ./tests/contract/conditions -count=1 -update-docs

.PHONY: generate-constants
generate-constants:
	@go run ./internal/report/reasons/generate

.PHONY: generate-api
generate-api: generate-constants
	@generator='$(call path,controller-gen)'; reference='$(call path,crd-ref-docs)'; \
	cd api; \
	"$$generator" object paths=./...; \
	"$$generator" crd:generateEmbeddedObjectMeta=true paths=./... output:crd:dir=../config/crd/bases; \
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
	cp config/rbac/role.yaml config/rbac/edit_role.yaml config/rbac/view_role.yaml config/rbac/approver_role.yaml config/admission/approval_by.yaml config/admission/stack_approval.yaml config/admission/stack_rollout.yaml config/admission/update_owner.yaml config/account/service_account.yaml config/chart/files/

# What the command line installs, without the definitions, which it has from config/crd.
.PHONY: generate-install
generate-install: generate-rbac
	@'$(call path,kubectl)' kustomize config/default | awk -v RS='---\n' '!/\nkind: CustomResourceDefinition\n/ { printf "---\n%s", $$0 }' >config/install.yaml

.PHONY: site
site: ## Build a site from docs into OUTPUT/site, with npm, and check its links
	@cd .ci/site && npm ci --ignore-scripts --no-audit --no-fund --silent
	@rm -rf '$(OUTPUT)/site'
	@.ci/site/node_modules/.bin/eleventy --config=.ci/site/eleventy.config.js --output='$(OUTPUT)/site' --quiet
	@node .ci/site/check.js '$(OUTPUT)/site'

##@ Release

.PHONY: release
release: images ## Write all of a release into OUTPUT: images, SBOMs, install.yaml, flux.yaml, resource_set.yaml, account.yaml, crds.yaml, chart, schemas, command line and its catalogs, checksums
	@$(release_settings) .ci/release manifests chart cli catalog schemas $(if $(IMAGE_REGISTRY),push) checksums

.PHONY: chart
chart: ## Package the Helm chart of VERSION into OUTPUT
	@$(release_settings) .ci/release chart

##@ Check

.PHONY: test
test: install-test-tools bin/suite ## Prove each promise once, against real servers: about 11 minutes
	@bin/suite -race=$(RACE) -groups='$(ONLY)' short

.PHONY: test-all
test-all: install-test-tools bin/suite ## Run all tests, also those that need a node, guides as they are written, and random faults
	@go run ./tests/tools/install $(MORE_TOOLS) >/dev/null
	@bin/suite -race=$(RACE) -groups='$(ONLY)' long

.PHONY: test-languages
test-languages: install-test-tools ## Run the tests of programs in TypeScript, Go and other languages, with the image in TEST_ASSET_LANGUAGES_IMAGE if it is set
	go test ./tests/e2e/languages -count=1 -timeout=90m

.PHONY: bin/suite
bin/suite:
	@mkdir -p bin
	@CGO_ENABLED=0 go build -o bin/suite ./tests/framework/suite/run

.PHONY: lint
lint: ## Check style and likely mistakes in both modules, the length of files, and the workflows
	@linter='$(call path,golangci-lint)'; config="$$PWD/.golangci.yml"; \
	echo "golangci-lint: api"; (cd api && "$$linter" run --config="$$config" ./...); \
	echo "golangci-lint: ."; "$$linter" run --config="$$config" ./...
	@.ci/file-length
	@'$(call path,actionlint)' -shellcheck= -pyflakes= .github/workflows/*.yaml

.PHONY: verify
verify: generate-code ## Fail when generated files or go.mod are not up to date
	@git diff --exit-code -- api config docs/api internal/agent/agentpb \
		|| { echo 'Generated files are stale: commit what "make generate" changed.'; exit 1; }
	@untracked=$$(git ls-files --others --exclude-standard -- api config docs/api internal/agent/agentpb); \
		[[ -z "$$untracked" ]] || { echo "Generated files are not committed: $$untracked"; exit 1; }
	go mod tidy -diff
	cd api && go mod tidy -diff
	@echo 'verify: everything is up to date'

.PHONY: bench
bench: ## Measure commits, first starts and idle cost beside a bare "pulumi up"; in pods too, as root
	CGO_ENABLED=0 go run ./tests/load/bench

.PHONY: scale
scale: ## Measure what STACKS Stacks cost, and write docs/scale.md and its plots: about 45 minutes for 2000, 100 for 10000
	CGO_ENABLED=0 go run ./tests/load/scale -stacks='$(STACKS)' -report='$(CURDIR)/docs/scale.md'

.PHONY: upgrade
upgrade: ## Show that this build, in the place of the one at the revision FROM, runs no update of 100 Stacks of each kind of source
	CGO_ENABLED=0 go run ./tests/e2e/upgrade -from='$(FROM)'

.PHONY: faults
faults: ## Inject faults in RUNS runs that follow from SEED, in ENVIRONMENTS environments, and write docs/reliability.md from what comes of them
	go test ./tests/load/faults -run='^TestRandomFaults$$' -count=1 -v -timeout=0 \
		-args -runs='$(RUNS)' -seed='$(SEED)' -environments='$(ENVIRONMENTS)' -report='$(CURDIR)/docs/reliability.md'

.PHONY: pod-faults
pod-faults: ## The same, as root, for workspaces in pods on a real node, and docs/reliability-pods.md
	CGO_ENABLED=0 go test ./tests/load/podfaults -run=TestRandomFaults -count=1 -v -timeout=0 \
		-args -runs='$(RUNS)' -seed='$(SEED)' -report='$(CURDIR)/docs/reliability-pods.md'

.PHONY: fuzz
fuzz: ## Fuzz each target, or those of TARGETS, for FUZZTIME
	@.ci/fuzz '$(FUZZTIME)' $(TARGETS)

##@ Set up

.PHONY: cluster-up
cluster-up: ## Start a cluster with one node and Flux, as root, and leave it running
	@mkdir -p bin
	@CGO_ENABLED=0 go build -o bin/cluster ./tests/framework/cluster/up
	@bin/cluster

.PHONY: cluster-down
cluster-down: ## End and remove what "make cluster-up" left running
	@mkdir -p bin
	@CGO_ENABLED=0 go build -o bin/cluster ./tests/framework/cluster/up
	@bin/cluster -down

.PHONY: install-tools
install-tools: install-test-tools ## Build every tool that "make lint", "make verify" and "make test" need
	@go run ./tests/tools/install $(CHECK_TOOLS) >/dev/null

.PHONY: install-test-tools
install-test-tools:
	@$(if $(filter true,$(RACE)),,echo 'no C compiler: testing without the race detector')
	@go run ./tests/tools/install $(TEST_TOOLS) >/dev/null
	@if go run ./tests/framework/cluster/up -check; then go run ./tests/tools/install $(NODE_TOOLS) >/dev/null; \
		else echo 'testing without a cluster that runs pods'; fi

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
