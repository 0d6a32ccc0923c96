package operation

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/agent/config"
	"github.com/stack-controller/stack-controller/internal/file"
)

// configure writes the stack's configuration: the file that came with the source, with the values of the request.
//
// Secret values are encrypted here if the key comes from a passphrase. With any other secrets provider the CLI has to encrypt them, in one
// process for each value, which reads the value from stdin. That costs 0.3 to 0.5 s for each value, in addition to the time of the service.
func (o *operation) configure(ctx context.Context) error {
	stackFile, err := o.sourceConfig()
	if err != nil {
		return configInvalid("the stack's configuration file is not valid: %s", err)
	}
	items, err := stackFile.Order(o.items)
	if err != nil {
		return configInvalid("%s", err)
	}
	if err := o.applySecretsProvider(ctx, stackFile.Settings); err != nil {
		return err
	}
	hasSecrets := slices.ContainsFunc(o.items, func(item config.Item) bool { return item.Secret })
	// Pulumi Cloud may store the configuration of a stack; a file would hide that.
	useFile := o.selfManaged() || len(o.items) > 0 || len(o.request.GetEnvironments()) > 0
	var encrypter config.Encrypter
	if kept := o.keptSettings(); stackFile.Kind() == "" && kept.UsesKeyManagement() && kept.SecretsProvider == o.secretsProvider {
		// For a stack that was created but never updated, nothing else names the provider.
		stackFile.Settings = kept
	}
	if hasSecrets || useFile && !cli.StateSecretsProvider.In(o.runner.cli.Version) {
		if stackFile.Settings, encrypter, err = o.encryption(ctx, stackFile.Settings); err != nil {
			return err
		}
	}
	var later []config.Item
	for _, item := range items {
		if item.Secret && encrypter == nil {
			later = append(later, item)
		} else if err := stackFile.Set(ctx, item, encrypter); err != nil {
			return configInvalid("config %s: %s", item.Key, err)
		}
	}
	if o.assumed.Kind() != "" {
		stackFile.Settings = config.Settings{}
	}
	if err := stackFile.AddEnvironments(o.request.GetEnvironments()); err != nil {
		return configInvalid("the stack's configuration file is not valid: %s", err)
	}
	if err := o.writeConfig(stackFile); err != nil {
		return err
	}
	for _, item := range later {
		if err := o.encryptByCLI(ctx, item); err != nil {
			return err
		}
	}
	if useFile {
		o.configFile = o.stack.ConfigFile()
	}
	return nil
}

// sourceConfig reads the configuration that came with the source. A link that an earlier operation made is not part of the source.
func (o *operation) sourceConfig() (*config.File, error) {
	if !o.project.hasProgram() {
		return config.Parse(nil, o.project.Name)
	}
	path := filepath.Join(o.dir, o.project.stackFile(o.stack.Short))
	if link := LinkOf(path, o.paths.LeftOut); link != "" {
		return nil, fmt.Errorf("%s %s", o.project.stackFile(o.stack.Short), DescribeLink(o.dir, link))
	}
	content, err := file.Read(path, config.MaxSize)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, file.WithoutPath(err)
	}
	return config.Parse(content, o.project.Name)
}

func (o *operation) writeConfig(stackFile *config.File) error {
	content, err := stackFile.Encode()
	if err != nil {
		return configInvalid("the stack's configuration cannot be written: %s", err)
	}
	return file.Write(o.stack.ConfigFile(), content)
}

// encryptByCLI has the CLI set a secret value, because only the CLI can encrypt it.
func (o *operation) encryptByCLI(ctx context.Context, item config.Item) error {
	args := []string{"config", "set", "--secret", "--stack", o.stack.Name, "--config-file", o.stack.ConfigFile()}
	if item.Path {
		args = append(args, "--path")
	}
	if cli.RawConfig.In(o.runner.cli.Version) {
		args = append(args, "--raw")
	}
	return o.must(ctx, cli.Invocation{Args: append(args, "--", item.Key), Stdin: strings.NewReader(item.Value)},
		agentpb.FailureReason_FAILURE_REASON_CONFIG_INVALID, "config "+item.Key)
}
