package operation_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	runner "github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
)

// secretsProvider returns what the state of the stack says about its encryption: the kind, and the address of a service.
func (f *fixture) secretsProvider() (kind, url string) {
	f.t.Helper()
	var state struct {
		Checkpoint struct {
			Latest struct {
				SecretsProviders struct {
					Type  string
					State struct{ URL string }
				} `json:"secrets_providers"`
			}
		}
	}
	content, err := os.ReadFile(filepath.Join(f.state, ".pulumi", "stacks", "demo", "dev.json"))
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(json.Unmarshal(content, &state)).To(Succeed())
	provider := state.Checkpoint.Latest.SecretsProviders
	return provider.Type, provider.State.URL
}

func (f *fixture) expectProvider(kind, url string) {
	f.t.Helper()
	gotKind, gotURL := f.secretsProvider()
	f.Expect(gotKind).To(Equal(kind))
	f.Expect(gotURL).To(Equal(url))
}

func TestSecretsProviderOfAStackIsChangedOnce(t *testing.T) {
	suite.Long(t, "further states of a secrets provider")
	f := newFixture(t)
	service := newTransit(t)
	f.write("Pulumi.yaml", secretProgram)
	var operations []*agentpb.Operation
	run := func(provider string) *agentpb.Operation {
		t.Helper()
		operation := f.succeed(up, service.provider(provider), withConfig(secret("password", canary)))
		f.Expect(string(operation.GetOutputs()["password"].GetValue())).To(Equal(`"canary-value-51c9\"quoted\""`))
		operations = append(operations, operation)
		return operation
	}
	run("")
	f.expectProvider("passphrase", "")
	f.processes()
	for _, change := range []struct{ provider, kind, url, note string }{
		{"hashivault://one", "cloud", "hashivault://one", "encrypted with hashivault://one now, not with passphrase any longer"},
		{"hashivault://two", "cloud", "hashivault://two", "encrypted with hashivault://two now, not with hashivault://one any longer"},
		{"default", "passphrase", "", "encrypted with default now, not with hashivault://two any longer"},
		{"hashivault://one", "cloud", "hashivault://one", "not with passphrase any longer"},
		{"passphrase", "passphrase", "", "encrypted with passphrase now"},
	} {
		operation := run(change.provider)
		f.Expect(operation.GetMessage()).To(ContainSubstring(change.note))
		f.expectProvider(change.kind, change.url)
		f.Expect(f.processes()).To(ContainElement(HavePrefix("stack change-secrets-provider ")))
		// Nothing is left to do for the change. The second process reads the secret output.
		f.Expect(run(change.provider).GetMessage()).NotTo(ContainSubstring("encrypted with"))
		expected := []any{HavePrefix("up "), HavePrefix("stack output ")}
		if change.kind == "cloud" {
			// A service encrypts through the CLI.
			expected = append([]any{HavePrefix("config set ")}, expected...)
		}
		f.Expect(f.processes()).To(HaveExactElements(expected...), change.provider)
	}
	// If the request names no provider, everything stays. An agent without records looks at the state once.
	run("hashivault://one")
	run("")
	f.expectProvider("cloud", "hashivault://one")
	f.Expect(os.RemoveAll(f.home)).To(Succeed())
	f.restart()
	run("hashivault://one")
	f.Expect(f.processes()).To(And(ContainElement(HavePrefix("stack export ")), Not(ContainElement(HavePrefix("stack change-secrets-provider ")))))
	run("hashivault://one")
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("config set "), HavePrefix("up "), HavePrefix("stack output ")))
	f.expectNoCanary(operations...)
}

func TestSecretsProviderThatWasChangedElsewhereStays(t *testing.T) {
	expectProvidersOfOthersStay(t, "hashivault://one")
}

func TestSecretsProvidersThatWereChangedElsewhereStay(t *testing.T) {
	suite.Long(t, "further states of a secrets provider")
	expectProvidersOfOthersStay(t, "hashivault://one", "hashivault://two", "passphrase", "hashivault://one")
}

// expectProvidersOfOthersStay changes the secrets provider as somebody does who has the backend, but not the agent.
func expectProvidersOfOthersStay(t *testing.T, providers ...string) {
	f, service := newFixture(t), newTransit(t)
	laptop := *f
	laptop.home, laptop.project = t.TempDir(), t.TempDir()
	f.write("Pulumi.yaml", secretProgram)
	run := func() {
		t.Helper()
		operation := f.succeed(up, service.provider(""), withConfig(secret("password", canary)))
		f.Expect(string(operation.GetOutputs()["password"].GetValue())).To(Equal(`"canary-value-51c9\"quoted\""`))
		f.expectNoCanary(operation)
	}
	run()
	laptop.write("Pulumi.yaml", simpleProgram)
	laptop.write("Pulumi.dev.yaml", "encryptionsalt: "+f.salt()+"\n")
	for _, provider := range providers {
		laptop.exec(tool(t, "pulumi"), "", []string{"VAULT_ADDR=" + service.URL, "VAULT_TOKEN=any"}, "stack", "change-secrets-provider", "--stack", "dev", provider)
		kind, url := f.secretsProvider()
		f.Expect(kind).To(Or(Equal(provider), Equal("cloud")))
		run()
		f.expectProvider(kind, url)
		f.processes()
		run()
		f.expectProvider(kind, url)
		f.Expect(f.processes()).NotTo(ContainElement(HavePrefix("stack export ")), "nothing has to read the state any longer")
	}
}

func TestStackIsCreatedWithItsSecretsProvider(t *testing.T) {
	for name, config := range map[string][]*agentpb.ConfigItem{"with secrets": {secret("password", canary)}, "without secrets": nil} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			service := newTransit(t)
			program := simpleProgram
			if config != nil {
				program = secretProgram
			}
			// The first update fails after the stack was created. It knows that the stack is new.
			f.write("Pulumi.yaml", program+"  broken: {fn::readFile: ./none}\n")
			isNew := func(request *agentpb.StartOperationRequest) {
				request.CreateStack, request.NewStack = true, config == nil
			}
			f.Expect(f.run(up, service.provider("hashivault://one"), withConfig(config...), isNew).GetState()).To(Equal(failed))
			f.Expect(f.processes()).NotTo(ContainElement(HavePrefix("stack change-secrets-provider ")))
			f.write("Pulumi.yaml", program)
			operation := f.succeed(up, service.provider("hashivault://one"), withConfig(config...))
			f.expectProvider("cloud", "hashivault://one")
			f.Expect(f.processes()).NotTo(ContainElement(HavePrefix("stack change-secrets-provider ")))
			f.expectNoCanary(operation)
		})
	}
}

func TestOnlyWhatWritesTheStateChangesTheSecretsProvider(t *testing.T) {
	suite.Long(t, "further states of a secrets provider")
	f := newFixture(t)
	service := newTransit(t)
	f.write("Pulumi.yaml", secretProgram)
	withSecret := withConfig(secret("password", canary))
	f.succeed(up, withSecret)
	for _, kind := range []agentpb.OperationKind{preview, destroy} {
		f.succeed(kind, service.provider("hashivault://one"), withSecret)
		f.expectProvider("passphrase", "")
	}
	f.succeed(refresh, service.provider("hashivault://one"), withSecret)
	f.expectProvider("cloud", "hashivault://one")
}

func TestChangeOfTheSecretsProviderCanBeCutOffAnywhere(t *testing.T) {
	suite.Long(t, "further states of a secrets provider")
	f := newFixture(t)
	service := newTransit(t)
	f.write("Pulumi.yaml", secretProgram)
	withSecret := withConfig(secret("password", canary))
	f.succeed(up, withSecret)

	// The operation is cut off while the service is asked for a key.
	service.hold.Store(true)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-service.held
		cancel(runner.ErrShutdown)
	}()
	operation := f.runContext(ctx, up, service.provider("hashivault://one"), withSecret)
	f.Expect(operation.GetState()).To(Equal(interrupted), operation.GetMessage())
	f.expectProvider("passphrase", "")
	service.hold.Store(false)
	// An operation that does not ask for the change finds the stack as it was.
	f.succeed(up, withSecret)
	f.expectProvider("passphrase", "")

	// The operation is cut off after the state was replaced, before the change is noted.
	real, err := os.ReadFile(f.options.Pulumi)
	f.Expect(err).NotTo(HaveOccurred())
	f.writeCLI(fmt.Appendf(nil,
		"#!/bin/sh\ncase \"$*\" in *change-secrets-provider*) %q \"$@\"; kill -9 $$;; esac\nexec %q \"$@\"\n",
		tool(t, "pulumi"), tool(t, "pulumi")))
	operation = f.run(up, service.provider("hashivault://one"), withSecret)
	f.Expect(operation.GetState()).To(Equal(interrupted), operation.GetMessage())
	f.expectProvider("cloud", "hashivault://one")
	f.writeCLI(real)
	f.processes()
	operation = f.succeed(up, service.provider("hashivault://one"), withSecret)
	f.Expect(string(operation.GetOutputs()["password"].GetValue())).To(ContainSubstring("canary-value"))
	f.expectProvider("cloud", "hashivault://one")
	f.Expect(f.processes()).NotTo(ContainElement(HavePrefix("stack change-secrets-provider ")))
	f.expectNoCanary(operation)
}

func TestChangeOfTheSecretsProviderThatFailsSaysWhy(t *testing.T) {
	suite.Long(t, "further states of a secrets provider")
	f := newFixture(t)
	service := newTransit(t)
	f.write("Pulumi.yaml", secretProgram)
	withSecret := withConfig(secret("password", canary))
	f.succeed(up, withSecret)
	expectProblem := func(operation *agentpb.Operation, message string) {
		t.Helper()
		f.Expect(operation.GetState()).To(Equal(failed))
		f.Expect(operation.GetFailure()).To(Equal(agentpb.FailureReason_FAILURE_REASON_SECRETS_PROVIDER), operation.GetMessage())
		f.Expect(operation.GetMessage()).To(ContainSubstring(message))
		f.expectProvider("passphrase", "")
		f.expectNoCanary(operation)
	}
	service.denied.Store(true)
	expectProblem(f.run(up, service.provider("hashivault://one"), withSecret), "cannot change the secrets provider of stack dev to hashivault://one")
	expectProblem(f.run(up, service.provider("none://x"), withSecret), "unknown secrets provider type 'none'")
	expectProblem(f.run(up, service.provider("--help"), withSecret), "unknown secrets provider type '--help'")
	service.denied.Store(false)
	expectProblem(f.run(up, service.provider("hashivault://one"), withSecret, withEnv("PULUMI_CONFIG_PASSPHRASE", "another", true)), "passphrase")
	f.succeed(up, service.provider("hashivault://one"), withSecret)
	f.expectProvider("cloud", "hashivault://one")
}

func TestSecretsProviderOfTheSourceHasPrecedence(t *testing.T) {
	suite.Long(t, "further states of a secrets provider")
	f := newFixture(t)
	service := newTransit(t)
	f.write("Pulumi.yaml", secretProgram)
	withSecret := withConfig(secret("password", canary))
	f.succeed(up, withSecret)
	f.write("Pulumi.dev.yaml", "encryptionsalt: "+f.salt()+"\n")
	operation := f.succeed(up, service.provider("hashivault://one"), withSecret)
	f.Expect(operation.GetMessage()).To(ContainSubstring("the secrets provider hashivault://one is not used, because Pulumi.dev.yaml in the source names passphrase"))
	f.expectProvider("passphrase", "")
	f.Expect(f.run(up, service.provider("passphrase"), withSecret).GetMessage()).NotTo(ContainSubstring("is not used"))
}
