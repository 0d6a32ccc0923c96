package automation

import (
	"context"
	"errors"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/config"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// encryption finds out how secret values of the stack are encrypted: the settings for its configuration file, and the
// encrypter when we have the key ourselves. Without one the CLI has to encrypt; the stack exists then.
//
// In this order it looks at the file that came with the source, at the stack's state if that was read for another reason, at what
// an earlier operation of this agent found out, and at the stack's state. A stack that does not exist yet gets its key now.
func (o *operation) encryption(ctx context.Context, fromSource cryptoSettings) (cryptoSettings, config.Encrypter, error) {
	if fromSource.usesService() {
		return fromSource, nil, nil
	}
	if fromSource.EncryptionSalt != "" {
		crypter, err := o.openSalt(ctx, fromSource.EncryptionSalt)
		return fromSource, crypter, err
	}
	// What the state says counts, when it was looked at.
	looked := o.exported != nil && o.exported.facts.cryptoKind != ""
	if kept := o.keptSettings(); !looked && !kept.empty() {
		if kept.usesService() {
			return kept, nil, nil
		}
		// When the passphrase does not fit any more, the state may have got a new one.
		if crypter, err := o.openSalt(ctx, kept.EncryptionSalt); err == nil {
			return kept, crypter, nil
		}
	}
	facts, exists, err := o.knownState(ctx)
	switch {
	case err != nil:
		return cryptoSettings{}, nil, err
	case !exists:
		return o.newEncryption(ctx)
	case facts.crypto.EncryptionSalt != "":
		crypter, err := o.openSalt(ctx, facts.crypto.EncryptionSalt)
		return facts.crypto, crypter, err
	case facts.cryptoKind == "" && o.wantsPassphrase():
		return o.newSalt(ctx)
	}
	return facts.crypto, nil, nil
}

// newEncryption decides for a stack that does not exist.
func (o *operation) newEncryption(ctx context.Context) (cryptoSettings, config.Encrypter, error) {
	if !o.request.GetCreateStack() {
		return cryptoSettings{}, nil, failed(proto.FailureReason_FAILURE_REASON_STACK_NOT_FOUND, "no stack named '%s' found", o.stack.name)
	}
	if o.wantsPassphrase() {
		settings, crypter, err := o.newSalt(ctx)
		if err != nil {
			return settings, nil, err
		}
		// The CLI takes the salt from the file.
		file, err := parseStackFile(nil)
		if err != nil {
			return settings, nil, err
		}
		file.setCrypto(settings)
		if err := o.writeConfig(file); err != nil {
			return settings, nil, err
		}
		return settings, crypter, o.createStack(ctx)
	}
	if err := o.createStack(ctx); err != nil {
		return cryptoSettings{}, nil, err
	}
	return o.keptSettings(), nil, nil
}

// wantsPassphrase tells whether a stack without a key gets one from a passphrase. It is the default of the CLI for backends
// other than Pulumi Cloud.
func (o *operation) wantsPassphrase() bool {
	switch o.secretsProvider {
	case "passphrase":
		return true
	case "", "default":
		return o.selfManaged()
	}
	return false
}

func (o *operation) openSalt(ctx context.Context, salt string) (config.Encrypter, error) {
	phrase, err := o.requirePassphrase()
	if err != nil {
		return nil, err
	}
	crypter, err := o.runner.crypters.open(ctx, phrase, salt)
	if errors.Is(err, errWrongPassphrase) {
		return nil, failed(proto.FailureReason_FAILURE_REASON_SECRETS_PROVIDER, "incorrect passphrase: it does not fit the secrets of stack %s", o.stack.name)
	}
	if err != nil {
		return nil, failed(proto.FailureReason_FAILURE_REASON_SECRETS_PROVIDER, "%s", err)
	}
	return crypter, nil
}

func (o *operation) newSalt(ctx context.Context) (cryptoSettings, config.Encrypter, error) {
	phrase, err := o.requirePassphrase()
	if err != nil {
		return cryptoSettings{}, nil, err
	}
	salt, crypter, err := o.runner.crypters.create(ctx, phrase)
	return cryptoSettings{EncryptionSalt: salt}, crypter, err
}

func (o *operation) requirePassphrase() (string, error) {
	phrase, set, err := passphrase(o.env)
	if err != nil {
		return "", failed(proto.FailureReason_FAILURE_REASON_SECRETS_PROVIDER, "%s", err)
	}
	if !set {
		return "", failed(proto.FailureReason_FAILURE_REASON_SECRETS_PROVIDER,
			"passphrase must be set with %s or %s environment variables", passphraseVariable, passphraseFileVariable)
	}
	return phrase, nil
}

// keptSettings returns what the CLI or an earlier operation left in the stack's directory.
func (o *operation) keptSettings() cryptoSettings {
	content, err := readBounded(o.stack.configFile(), maxProjectSize)
	if err != nil {
		return cryptoSettings{}
	}
	file, err := parseStackFile(content)
	if err != nil {
		return cryptoSettings{}
	}
	settings, err := file.crypto()
	if err != nil {
		return cryptoSettings{}
	}
	return settings
}
