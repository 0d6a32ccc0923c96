package automation

import (
	"crypto/sha1" //nolint:gosec // it names a file
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// People open a shell in a pod and type pulumi commands in the directory of the program. The CLI then looks for the stack's
// configuration beside Pulumi.yaml, and for the stack that is selected in PULUMI_HOME. So an operation that ends leaves both.
// The next one takes the configuration back before it begins: what it does never depends on what was left, or on what
// became of that.

// leave makes the commands of people work on the stack as the operation did. An operation does not depend on it, so nothing
// fails.
func (o *operation) leave() {
	if o.runner.options.Workspace == "" || o.project == nil || o.project.document == nil || o.stack == nil {
		return
	}
	if o.configured && o.useConfigFile {
		if err := o.leaveConfig(); err != nil {
			o.log.Info("the stack's configuration is not beside the program, for commands by hand", "error", err.Error())
		}
	}
	if err := o.leaveSelection(); err != nil {
		o.log.Info("the stack is not selected, for commands by hand", "error", err.Error())
	}
}

// leaveConfig puts the configuration that the CLI got where the CLI looks for it.
func (o *operation) leaveConfig() error {
	name := o.project.stackFileName(o.stack.short)
	if !filepath.IsLocal(name) || filepath.Ext(name) == ".json" {
		return errors.New("its place is outside of the program, or it is not YAML")
	}
	content, err := readBounded(o.stack.configFile(), maxProjectSize)
	if err != nil {
		return withoutPath(err)
	}
	return o.runner.leftFiles().put(&leftFile{Dir: o.dir, Name: name, Artifact: o.request.GetArtifact().GetDigest()}, content)
}

// leaveSelection selects the stack where none is: for the directory of the program, and for the link to it.
func (o *operation) leaveSelection() error {
	selection, err := json.Marshal(map[string]string{"stack": o.stack.name})
	if err != nil {
		return err
	}
	directories := []string{o.dir}
	if real, err := filepath.EvalSymlinks(o.runner.options.Workspace); err == nil {
		if program, err := filepath.EvalSymlinks(o.dir); err == nil && program == real {
			directories = append(directories, o.runner.options.Workspace)
		}
	}
	settings := filepath.Join(o.env["PULUMI_HOME"], "workspaces")
	if err := os.MkdirAll(settings, 0o700); err != nil {
		return withoutPath(err)
	}
	for _, dir := range directories {
		digest := sha1.Sum([]byte(filepath.Join(dir, o.project.file))) //nolint:gosec // it is how the CLI names the settings of a project
		path := filepath.Join(settings, o.project.name+"-"+hex.EncodeToString(digest[:])+"-workspace.json")
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := writeFile(path, selection); err != nil {
			return withoutPath(err)
		}
	}
	return nil
}
