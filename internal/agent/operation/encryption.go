package operation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agent/config"
	"github.com/stack-controller/stack-controller/internal/agent/state"
	"github.com/stack-controller/stack-controller/internal/file"
)

// overrideVariable makes the CLI use another key management service than the one that the stack names.
const overrideVariable = "PULUMI_CLOUD_SECRET_OVERRIDE"

// encryption finds out how the secret values of the stack are encrypted. It returns the settings for the configuration file, and the
// encrypter if the agent can derive the key. Without an encrypter the CLI has to encrypt; the stack exists then.
//
// It looks, in this order, at the file that came with the source, at the stack's state if that was already read for another reason, at what
// an earlier operation of this agent found out, and at the stack's state. A stack that does not exist yet gets its key now.
//
// What an earlier operation found out may be old: somebody may have changed the secrets provider since. If the request names none, it is only
// assumed, see useProviderOfState. Without a CLI that can take the provider from the state, it does not count.
func (o *operation) encryption(ctx context.Context, fromSource config.Settings) (config.Settings, config.Encrypter, error) {
	if fromSource.Kind() != "" {
		return o.withEncrypter(ctx, fromSource)
	}
	// The state has precedence if it was read.
	looked := o.exported != nil && o.exported.Kind != ""
	sure := o.exported != nil || o.created || o.request.GetSecretsProvider() != ""
	if kept := o.keptSettings(); !looked && kept.Kind() != "" && (sure || cli.StateSecretsProvider.In(o.runner.cli.Version)) {
		// If the passphrase no longer fits, the state may have got a new one.
		if _, encrypter, err := o.withEncrypter(ctx, kept); err == nil {
			if !sure {
				o.assumed = kept
			}
			return kept, encrypter, nil
		}
	}
	facts, err := o.knownState(ctx)
	switch {
	case err != nil:
		return config.Settings{}, nil, err
	case !facts.Exists:
		return o.newEncryption(ctx)
	case facts.Kind == "" && o.wantsPassphrase():
		return o.newSalt(ctx)
	}
	return o.withEncrypter(ctx, facts.Settings)
}

// useProviderOfState configures the operation again if the stack has another secrets provider than encryption assumed. It reports whether it did.
//
// Where the provider is assumed, the configuration does not name it, so that the CLI takes that of the state. The CLI then cannot read values that
// are encrypted with another one, and fails before it changes anything. If the configuration named the provider, the CLI would encrypt the state
// with it again. Nothing has to read the state as long as the assumption holds.
func (o *operation) useProviderOfState(ctx context.Context) (changed bool, err error) {
	assumed := o.assumed
	if assumed.Kind() == "" {
		return false, nil
	}
	o.assumed, o.exported = config.Settings{}, nil
	facts, err := o.knownState(ctx)
	if err != nil || !facts.Exists || facts.Settings == assumed {
		return false, err
	}
	o.log.Info("the secrets provider was changed outside of the agent", "from", assumed.Provider(), "to", facts.Settings.Provider())
	return true, o.configure(ctx)
}

// newEncryption creates the stack, which does not exist, and returns how its secret values are encrypted.
func (o *operation) newEncryption(ctx context.Context) (settings config.Settings, encrypter config.Encrypter, err error) {
	if !o.request.GetCreateStack() {
		return settings, nil, failed(agentpb.FailureReason_FAILURE_REASON_STACK_NOT_FOUND, "no stack named '%s' found", o.stack.Name)
	}
	if !o.wantsPassphrase() {
		if err := o.createStack(ctx); err != nil {
			return settings, nil, err
		}
		return o.keptSettings(), nil, nil
	}
	if settings, encrypter, err = o.newSalt(ctx); err != nil {
		return settings, nil, err
	}
	// The CLI takes the salt from the file.
	if err := o.writeConfig(&config.File{Settings: settings}); err != nil {
		return settings, nil, err
	}
	return settings, encrypter, o.createStack(ctx)
}

// wantsPassphrase reports whether a stack without a key gets one that is derived from a passphrase. This is the default of the CLI for
// backends other than Pulumi Cloud.
func (o *operation) wantsPassphrase() bool {
	switch o.secretsProvider {
	case "passphrase":
		return true
	case "", "default":
		return o.selfManaged()
	}
	return false
}

// withEncrypter returns the settings with their encrypter, which is nil unless the key comes from a passphrase.
func (o *operation) withEncrypter(ctx context.Context, settings config.Settings) (config.Settings, config.Encrypter, error) {
	if settings.Kind() != config.KindPassphrase {
		return settings, nil, nil
	}
	phrase, err := o.passphrase()
	if err != nil {
		return settings, nil, err
	}
	encrypter, err := o.runner.crypters.Open(ctx, phrase, settings.EncryptionSalt)
	if errors.Is(err, config.ErrWrongPassphrase) {
		err = fmt.Errorf("%w: it does not fit the secrets of stack %s", err, o.stack.Name)
	}
	if err != nil {
		return settings, nil, secretsProviderFailed("%s", err)
	}
	return settings, encrypter, nil
}

func (o *operation) newSalt(ctx context.Context) (config.Settings, config.Encrypter, error) {
	phrase, err := o.passphrase()
	if err != nil {
		return config.Settings{}, nil, err
	}
	salt, encrypter, err := o.runner.crypters.Create(ctx, phrase)
	return config.Settings{EncryptionSalt: salt}, encrypter, err
}

func (o *operation) passphrase() (string, error) {
	phrase, set, err := config.Passphrase(o.env)
	if err == nil && !set {
		err = fmt.Errorf("passphrase must be set with %s or %s environment variables", config.PassphraseVariable, config.PassphraseFileVariable)
	}
	if err != nil {
		return "", secretsProviderFailed("%s", err)
	}
	return phrase, nil
}

// keptSettings returns what the CLI or an earlier operation left in the stack's directory.
func (o *operation) keptSettings() config.Settings {
	content, err := file.Read(o.stack.ConfigFile(), config.MaxSize)
	if err != nil {
		return config.Settings{}
	}
	kept, err := config.Parse(content, o.project.Name)
	if err != nil {
		return config.Settings{}
	}
	return kept.Settings
}

// applySecretsProvider changes the secrets provider of the stack to the one that the request names, before an operation that writes the
// state anyway. It notes when the stack has that provider, so that only the first operation of an agent has to look.
//
// A configuration file that came with the source and names a provider has precedence: the secrets in the file are encrypted with that
// provider, and will be so in the next revision as well.
func (o *operation) applySecretsProvider(ctx context.Context, fromSource config.Settings) error {
	wanted := o.request.GetSecretsProvider()
	o.secretsProvider = wanted
	if fromSource.Kind() != "" {
		o.secretsProvider = fromSource.Provider()
		if wanted != "" && !o.provides(wanted, fromSource.Kind(), fromSource) {
			o.notes = append(o.notes, fmt.Sprintf("the secrets provider %s is not used, because Pulumi.%s.yaml in the source names %s",
				wanted, o.stack.Short, fromSource.Provider()))
		}
		return nil
	}
	noted, _ := o.stack.Noted(state.SecretsProvider)
	if wanted == "" && noted != "" {
		// From now on the stack may get another provider that nobody tells the agent about.
		return o.stack.Note(state.SecretsProvider, "")
	}
	if wanted == "" || !o.writesState() || o.env[overrideVariable] != "" || noted == wanted {
		return nil
	}
	facts, err := o.knownState(ctx)
	if err != nil || !facts.Exists {
		// If the operation creates the stack, the stack gets the provider from the start.
		return err
	}
	kind, current := facts.Kind, facts.Settings
	if kind == "" {
		// The stack was not updated yet, so only the agent knows with which provider it was created.
		current = o.keptSettings()
		kind = current.Kind()
	}
	if !o.provides(wanted, kind, current) {
		if err := o.changeSecretsProvider(ctx, current, wanted); err != nil {
			return err
		}
	}
	return o.stack.Note(state.SecretsProvider, wanted)
}

// writesState reports whether the operation changes the state of a stack that stays. A preview that saves a plan counts: the plan is bound
// to the state, which must not change between the preview and the operation that carries out the plan.
func (o *operation) writesState() bool {
	kind := o.kind()
	return kind == agentpb.OperationKind_OPERATION_KIND_PREVIEW && o.savesPlan() || kind == agentpb.OperationKind_OPERATION_KIND_UP || kind == agentpb.OperationKind_OPERATION_KIND_REFRESH
}

// provides reports whether the settings, whose provider is of that kind, are those of the wanted provider.
func (o *operation) provides(wanted, kind string, settings config.Settings) bool {
	switch {
	case wanted == "passphrase", wanted == "default" && o.selfManaged():
		return kind == config.KindPassphrase || kind == "" && o.selfManaged()
	case wanted == "default":
		return kind == config.KindPulumiCloud || kind == ""
	}
	return settings.SecretsProvider == wanted
}

// changeSecretsProvider has the CLI encrypt the state again with another provider. The CLI runs in a directory of its own, so that an
// attempt that is cut off leaves nothing behind: the state names the provider in force, and is replaced as a whole.
func (o *operation) changeSecretsProvider(ctx context.Context, current config.Settings, wanted string) error {
	o.log.Info("changing the secrets provider", "from", current.Provider(), "to", wanted)
	o.report.update(func(op *agentpb.Operation) { op.Message = "changing the secrets provider" })
	dir, err := o.stack.Scratch(current)
	if err != nil {
		return fmt.Errorf("prepare the change of the secrets provider: %w", err)
	}
	defer os.RemoveAll(dir)
	change := func() error {
		args := []string{"stack", "change-secrets-provider", "--stack", o.stack.Name, "--", wanted}
		return o.mustChange(ctx, cli.Invocation{Args: args, Dir: dir}, agentpb.FailureReason_FAILURE_REASON_SECRETS_PROVIDER,
			fmt.Sprintf("cannot change the secrets provider of stack %s to %s", o.stack.Name, wanted))
	}
	err = change()
	if f, ok := errors.AsType[*failure](err); ok && f.reason == agentpb.FailureReason_FAILURE_REASON_UPDATE_CONFLICT && o.releaseLock(ctx, f.holders) {
		err = change()
	}
	if err != nil {
		return err
	}
	content, err := file.Read(filepath.Join(dir, filepath.Base(o.stack.ConfigFile())), config.MaxSize)
	if err != nil {
		return fmt.Errorf("read what the change of the secrets provider wrote: %w", file.WithoutPath(err))
	}
	o.exported = nil
	o.notes = append(o.notes, fmt.Sprintf("the secrets of the stack are encrypted with %s now, not with %s any longer", wanted, current.Provider()))
	return file.Write(o.stack.ConfigFile(), content)
}
