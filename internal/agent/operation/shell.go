package operation

import (
	"crypto/sha1" //nolint:gosec // it names a file
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/stack-controller/stack-controller/internal/file"
)

// People open a shell in a pod and run pulumi commands in the directory of the program. The CLI then looks for the stack's configuration
// beside Pulumi.yaml, and in PULUMI_HOME for the stack that is selected. So an operation that ends leaves the stack selected, and a link to
// the configuration that it used. If the source has a configuration of its own there, no link is made, and people have to use
// --config-file.

// prepareShell makes the commands of people work on the stack as the operation did. No operation depends on it, so it returns no error.
func (o *operation) prepareShell() {
	if o.runner.options.Workspace == "" || o.project == nil || !o.project.hasProgram() || o.stack == nil {
		return
	}
	if o.configFile != "" {
		if err := o.linkConfig(); err != nil {
			o.log.Info("there is no link to the stack's configuration, for commands by hand: use --config-file",
				"configFile", o.configFile, "error", err.Error())
		}
	}
	if err := o.selectStack(); err != nil {
		o.log.Info("the stack is not selected, for commands by hand", "error", o.readable(err.Error()))
	}
}

// linkConfig makes a link to the configuration of the operation where the CLI looks for it. It replaces nothing.
func (o *operation) linkConfig() error {
	root, name, err := o.openProgram()
	if err != nil {
		return err
	}
	defer root.Close()
	if filepath.Ext(name) == ".json" {
		return errors.New("the configuration is not JSON, as the project is")
	}
	return root.Symlink(o.configFile, name)
}

// removeConfigLink restores the tree as it was delivered: it removes the link that an earlier operation made.
func (o *operation) removeConfigLink() error {
	if o.runner.options.Workspace == "" || !o.project.hasProgram() {
		return nil
	}
	root, name, err := o.openProgram()
	if err != nil {
		return err
	}
	defer root.Close()
	if target, err := root.Readlink(name); err != nil || !strings.HasPrefix(target, o.runner.dir("stacks")+"/") {
		return nil
	}
	return file.WithoutPath(root.Remove(name))
}

// openProgram opens the directory of the program, and returns the name that the stack's configuration has in it.
func (o *operation) openProgram() (root *os.Root, name string, err error) {
	root, err = os.OpenRoot(o.dir)
	return root, o.project.stackFile(o.stack.Short), file.WithoutPath(err)
}

// selectStack selects the stack, unless a stack is selected already: for the directory of the program, and for the link to it.
func (o *operation) selectStack() error {
	selection, err := json.Marshal(map[string]string{"stack": o.stack.Name})
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
		return file.WithoutPath(err)
	}
	for _, dir := range directories {
		digest := sha1.Sum([]byte(filepath.Join(dir, o.project.file))) //nolint:gosec // it is how the CLI names the settings of a project
		path := filepath.Join(settings, o.project.Name+"-"+hex.EncodeToString(digest[:])+"-workspace.json")
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := file.Write(path, selection); err != nil {
			return file.WithoutPath(err)
		}
	}
	return nil
}
