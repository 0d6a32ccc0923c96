package automation

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/config"
	"gopkg.in/yaml.v3"
)

// configure writes the stack's configuration: the file that came with the source, with the values of the request.
//
// Secret values are encrypted here when the key comes from a passphrase. With every other secrets provider the CLI has to do it,
// in a process for each value, which reads it from stdin.
func (o *operation) configure(ctx context.Context) error {
	file, err := o.sourceFile()
	if err != nil {
		return err
	}
	fromSource, err := file.crypto()
	if err != nil {
		return configInvalid("the stack's configuration file is not valid: %s", err)
	}
	if err := o.checkKeys(); err != nil {
		return err
	}
	if err := o.settleSecretsProvider(ctx, fromSource); err != nil {
		return err
	}
	hasSecrets := slices.ContainsFunc(o.config, func(item configItem) bool { return item.secret })
	// On Pulumi Cloud the configuration of a stack may be stored there; a file would hide it.
	o.useConfigFile = o.selfManaged() || len(o.config) > 0 || len(o.request.GetEnvironments()) > 0
	var crypter config.Encrypter
	settings := fromSource
	if kept := o.keptSettings(); fromSource.empty() && kept.usesService() && kept.SecretsProvider == o.secretsProvider {
		// A stack that was created and never updated names its provider nowhere else.
		settings = kept
		file.setCrypto(kept)
	}
	if hasSecrets {
		if settings, crypter, err = o.encryption(ctx, fromSource); err != nil {
			return err
		}
		if fromSource.empty() {
			file.setCrypto(settings)
		}
	}
	var later []configItem
	for _, item := range o.config {
		if item.secret && crypter == nil && !o.setKnownCiphertext(file, settings, item) {
			later = append(later, item)
		}
		if item.secret && crypter == nil {
			continue
		}
		if err := o.setItem(ctx, file, item, crypter); err != nil {
			return configInvalid("config %s: %s", item.key, err)
		}
	}
	if err := file.addEnvironments(o.request.GetEnvironments()); err != nil {
		return configInvalid("the stack's configuration file is not valid: %s", err)
	}
	if err := o.writeConfig(file); err != nil {
		return err
	}
	if err := o.encryptByCLI(ctx, later); err != nil {
		return err
	}
	o.rememberCiphertexts(later)
	o.configured = true
	return nil
}

// checkKeys refuses two items for one place: which of them counts would depend on their order. A key of the project may be
// written with or without the project's name, which only we know.
func (o *operation) checkKeys() error {
	seen := map[string]string{}
	for _, item := range o.config {
		key, err := parseConfigKey(item.key, item.path, o.project.name)
		if err != nil {
			return configInvalid("config %s: %s", item.key, err)
		}
		place := key.String() + "\x00" + key.path.String()
		if earlier, known := seen[place]; known {
			return configInvalid("config %s and config %s are the same key, %s: set it once", earlier, item.key, key.String())
		}
		seen[place] = item.key
	}
	return nil
}

// sourceFile reads the configuration that came with the source.
func (o *operation) sourceFile() (*stackFile, error) {
	var content []byte
	if o.project.document != nil {
		read, err := readBounded(o.project.stackFile(o.stack.short), maxProjectSize)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, configInvalid("cannot read the stack's configuration file: %s", withoutPath(err))
		}
		content = read
	}
	file, err := parseStackFile(content)
	if err != nil {
		return nil, configInvalid("the stack's configuration file is not valid: %s", err)
	}
	return file, nil
}

func (o *operation) setItem(ctx context.Context, file *stackFile, item configItem, crypter config.Encrypter) error {
	key, err := parseConfigKey(item.key, item.path, o.project.name)
	if err != nil {
		return err
	}
	var value *yaml.Node
	if item.secret {
		ciphertext, err := crypter.EncryptValue(ctx, item.value)
		if err != nil {
			return fmt.Errorf("encrypt the value: %w", err)
		}
		value = secureNode(ciphertext)
	} else if value, err = plainNode(item, key); err != nil {
		return err
	}
	return file.set(key, o.project.name, value)
}

func (o *operation) writeConfig(file *stackFile) error {
	content, err := file.encode()
	if err != nil {
		return configInvalid("the stack's configuration cannot be written: %s", err)
	}
	return writeFile(o.stack.configFile(), content)
}
