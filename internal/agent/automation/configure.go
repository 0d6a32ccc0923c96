package automation

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/blang/semver"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/config"
	"gopkg.in/yaml.v3"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// rawConfigVersion is the first CLI that can read a value with a newline at its end from stdin.
var rawConfigVersion = semver.MustParse("3.247.0")

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
	hasSecrets := slices.ContainsFunc(o.config, func(item configItem) bool { return item.secret })
	// On Pulumi Cloud the configuration of a stack may be stored there; a file would hide it.
	o.useConfigFile = o.selfManaged() || len(o.config) > 0 || len(o.request.GetEnvironments()) > 0
	var crypter config.Encrypter
	if hasSecrets {
		settings, found, err := o.encryption(ctx, fromSource)
		if err != nil {
			return err
		}
		if fromSource.empty() {
			file.setCrypto(settings)
		}
		crypter = found
	}
	var later []configItem
	for _, item := range o.config {
		if item.secret && crypter == nil {
			later = append(later, item)
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
	o.configured = true
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

// encryptByCLI sets secret values whose key only the CLI can use.
func (o *operation) encryptByCLI(ctx context.Context, items []configItem) error {
	for _, item := range items {
		args := []string{"config", "set", "--secret", "--stack", o.stack.name, "--config-file", o.stack.configFile()}
		if item.path {
			args = append(args, "--path")
		}
		if o.runner.version.GTE(rawConfigVersion) {
			args = append(args, "--raw")
		}
		args = append(args, "--", item.key)
		res, err := o.helper(ctx, commandTimeout, invocation{args: args, stdin: strings.NewReader(item.value)})
		if err != nil {
			return err
		}
		if res.code != 0 {
			f := classify(res, &summary{})
			if f.reason == proto.FailureReason_FAILURE_REASON_UPDATE_FAILED {
				f.reason = proto.FailureReason_FAILURE_REASON_CONFIG_INVALID
			}
			f.message = fmt.Sprintf("config %s: %s", item.key, f.message)
			return f
		}
	}
	return nil
}

// exportState reads what matters of the stack's state. It tells whether the stack exists.
func (o *operation) exportState(ctx context.Context) (facts stateFacts, exists bool, err error) {
	path := filepath.Join(o.stack.dir, "state.json")
	defer os.Remove(path)
	res, err := o.helper(ctx, exportTimeout, invocation{args: []string{"stack", "export", "--stack", o.stack.name, "--file", path}})
	if err != nil {
		return facts, false, err
	}
	if res.code != 0 {
		f := classify(res, &summary{})
		if f.reason == proto.FailureReason_FAILURE_REASON_STACK_NOT_FOUND {
			return facts, false, nil
		}
		return facts, false, f
	}
	facts, err = readStateFacts(path)
	return facts, true, err
}
