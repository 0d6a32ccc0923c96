package automation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// overrideVariable makes the CLI use another key management service than the stack names.
const overrideVariable = "PULUMI_CLOUD_SECRET_OVERRIDE"

// providerFile notes in the stack's directory which secrets provider is in force, as the request names it.
const providerFile = "secretsprovider"

// settleSecretsProvider makes the secrets provider of the stack the one that the request names, before an operation that writes
// the state anyway. Whether it is that already is noted, so that only the first operation of an agent has to look.
//
// A configuration file that came with the source and names a provider has precedence: the secrets in it are encrypted with that,
// and will be so in the next revision as well.
func (o *operation) settleSecretsProvider(ctx context.Context, fromSource cryptoSettings) error {
	o.secretsProvider = o.request.GetSecretsProvider()
	wanted := o.secretsProvider
	if !fromSource.empty() {
		o.secretsProvider = fromSource.provider()
		if wanted != "" && !o.provides(wanted, fromSource.kind(), fromSource) {
			o.notes = append(o.notes, fmt.Sprintf("the secrets provider %s is not used, because Pulumi.%s.yaml in the source names %s",
				wanted, o.stack.short, fromSource.provider()))
		}
		return nil
	}
	if wanted == "" || !o.writesState() || o.env[overrideVariable] != "" || o.stack.notedProvider() == wanted {
		return nil
	}
	facts, exists, err := o.knownState(ctx)
	if err != nil || !exists {
		// A stack that is created gets it from the start.
		return err
	}
	if facts.cryptoKind == "" {
		// There was no update yet, so only we know with what it was created.
		facts.crypto = o.keptSettings()
		facts.cryptoKind = facts.crypto.kind()
	}
	if !o.provides(wanted, facts.cryptoKind, facts.crypto) {
		if err := o.changeSecretsProvider(ctx, facts.crypto, wanted); err != nil {
			return err
		}
	}
	return o.stack.noteProvider(wanted)
}

// writesState tells whether the operation changes the state of a stack that stays.
func (o *operation) writesState() bool {
	switch o.request.GetKind() {
	case proto.OperationKind_OPERATION_KIND_UP, proto.OperationKind_OPERATION_KIND_REFRESH:
		return true
	}
	return false
}

// provides tells whether the settings, of that kind, are those of the provider.
func (o *operation) provides(wanted, kind string, settings cryptoSettings) bool {
	switch {
	case wanted == "passphrase", wanted == "default" && o.selfManaged():
		return kind == kindPassphrase || kind == "" && o.selfManaged()
	case wanted == "default":
		return kind == kindCloudBackend || kind == ""
	}
	return settings.SecretsProvider == wanted
}

// changeSecretsProvider has the CLI encrypt the state anew. It happens in a directory of its own, so that nothing is left of an
// attempt that is cut off: the state names the provider that is in force, and is replaced as a whole.
func (o *operation) changeSecretsProvider(ctx context.Context, current cryptoSettings, wanted string) error {
	o.log.Info("changing the secrets provider", "from", current.provider(), "to", wanted)
	o.report.update(true, func(op *proto.Operation) { op.Message = "changing the secrets provider" })
	dir := filepath.Join(o.stack.dir, "change")
	if err := o.stack.makeScratch(dir, current); err != nil {
		return fmt.Errorf("prepare the change of the secrets provider: %w", err)
	}
	defer os.RemoveAll(dir)
	err := o.runChange(ctx, dir, wanted)
	var f *failure
	if errors.As(err, &f) && f.reason == proto.FailureReason_FAILURE_REASON_UPDATE_CONFLICT && o.releaseLock(ctx, f.holders) {
		err = o.runChange(ctx, dir, wanted)
	}
	if err != nil {
		return err
	}
	content, err := readBounded(filepath.Join(dir, filepath.Base(o.stack.configFile())), maxProjectSize)
	if err != nil {
		return fmt.Errorf("read what the change of the secrets provider wrote: %w", withoutPath(err))
	}
	o.exported = nil
	o.notes = append(o.notes, fmt.Sprintf("the secrets of the stack are encrypted with %s now, not with %s any more", wanted, current.provider()))
	return writeFile(o.stack.configFile(), content)
}

func (o *operation) runChange(ctx context.Context, dir, wanted string) error {
	args := []string{"stack", "change-secrets-provider", "--stack", o.stack.name, "--", wanted}
	res, err := o.helper(ctx, commandTimeout, invocation{args: args, dir: dir, started: o.stack.started, ended: o.stack.ended})
	if err != nil {
		return err
	}
	if res.code != 0 {
		f := classify(res, &summary{})
		if f.reason == proto.FailureReason_FAILURE_REASON_UPDATE_FAILED {
			f.reason = proto.FailureReason_FAILURE_REASON_SECRETS_PROVIDER
		}
		f.message = fmt.Sprintf("cannot change the secrets provider of stack %s to %s: %s", o.stack.name, wanted, f.message)
		return f
	}
	return nil
}

// makeScratch makes the directory one like that of the stack, without configuration.
func (s *stack) makeScratch(dir string, settings cryptoSettings) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	stub, err := readBounded(filepath.Join(s.dir, "Pulumi.yaml"), maxProjectSize)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, "Pulumi.yaml"), stub); err != nil {
		return err
	}
	file, err := parseStackFile(nil)
	if err != nil {
		return err
	}
	file.setCrypto(settings)
	content, err := file.encode()
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, filepath.Base(s.configFile())), content)
}

// notedProvider returns the provider that is known to be in force, empty when none is.
func (s *stack) notedProvider() string {
	content, err := readBounded(filepath.Join(s.dir, providerFile), maxProjectSize)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

func (s *stack) noteProvider(provider string) error {
	return writeFile(filepath.Join(s.dir, providerFile), []byte(provider+"\n"))
}
