package operation

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/stack-controller/stack-controller/internal/file"
)

const (
	// sharedPluginsVariable names, in the environment of the agent, a directory of plugins that many agents use.
	sharedPluginsVariable = "STACK_CONTROLLER_PLUGINS"
	// maxSharedPlugins bounds the plugins that are linked, and maxPluginEntries the files and directories in one of them.
	maxSharedPlugins, maxPluginEntries = 1000, 1000
)

// pluginName matches the name that the CLI gives to the directory of a plugin. The groups are the plugin and its version.
var pluginName = regexp.MustCompile(`^((?:analyzer|converter|language|resource|tool)-[A-Za-z0-9_.-]+)-v([0-9][A-Za-z0-9_.+-]*)$`)

// usePlugins makes the plugins of the shared directory available in PULUMI_HOME. PULUMI_HOME cannot simply contain the shared directory,
// because that may be read-only, and the CLI writes the schemas of plugins and its locks beside them. Nor does the CLI see a link to the
// directory of a plugin. So each plugin gets a directory with links to its content. Plugins that the image has, or that the CLI has
// installed, stay.
func (o *operation) usePlugins(context.Context) error {
	shared := os.Getenv(sharedPluginsVariable)
	if shared == "" {
		return nil
	}
	own := filepath.Join(o.runner.pulumiHome(), "plugins")
	if err := linkPlugins(shared, own); err != nil {
		// The CLI downloads missing plugins, or reports that it cannot.
		o.log.Error(err, "cannot use the shared plugins", "directory", shared)
	}
	return nil
}

func linkPlugins(shared, own string) error {
	shared = filepath.Clean(shared)
	present, err := readDir(shared, maxSharedPlugins)
	if err != nil {
		return fmt.Errorf("list the shared plugins: %w", file.WithoutPath(err))
	}
	if err := os.MkdirAll(own, 0o700); err != nil {
		return fmt.Errorf("create the directory of plugins: %w", err)
	}
	failed := removeLinked(shared, own)
	for _, entry := range present {
		if name := entry.Name(); entry.IsDir() && pluginName.MatchString(name) {
			failed = errors.Join(failed, linkPlugin(filepath.Join(shared, name), filepath.Join(own, name)))
		}
	}
	return failed
}

// linkPlugin makes the plugin appear as a whole, unless a plugin of that name exists, or is being installed into either directory.
func linkPlugin(from, to string) error {
	for _, path := range []string{to, to + ".partial", from + ".partial"} {
		if _, err := os.Lstat(path); err == nil {
			return nil
		}
	}
	entries, err := readDir(from, maxPluginEntries)
	if err != nil {
		return fmt.Errorf("read the shared plugin %s: %w", filepath.Base(from), err)
	}
	unfinished := filepath.Join(filepath.Dir(to), ".shared-"+rand.Text())
	err = os.Mkdir(unfinished, 0o700)
	for i := 0; err == nil && i < len(entries); i++ {
		name := entries[i].Name()
		err = os.Symlink(filepath.Join(from, name), filepath.Join(unfinished, name))
	}
	if err == nil {
		err = os.Rename(unfinished, to)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("link the shared plugin %s: %w", filepath.Base(from), err), os.RemoveAll(unfinished))
	}
	return nil
}

// removeLinked removes the links to plugins that the shared directory no longer has, and unfinished links of an agent that was
// killed.
func removeLinked(shared, own string) error {
	entries, err := os.ReadDir(own)
	if err != nil {
		return fmt.Errorf("list the plugins: %w", err)
	}
	for _, entry := range entries {
		path := filepath.Join(own, entry.Name())
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), ".shared-") && !lostLink(shared, path) {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove a plugin that is no longer shared: %w", err)
		}
	}
	return nil
}

// lostLink reports whether the directory of a plugin has links into the shared directory that lead nowhere.
func lostLink(shared, path string) bool {
	entries, err := readDir(path, maxPluginEntries)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		link := filepath.Join(path, entry.Name())
		target, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(target, shared+"/") {
			continue
		}
		if _, err := os.Stat(link); errors.Is(err, os.ErrNotExist) {
			return true
		}
	}
	return false
}

// readDir lists at most limit entries of a directory.
func readDir(path string, limit int) ([]os.DirEntry, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(limit)
	if errors.Is(err, io.EOF) {
		err = nil // it is empty
	}
	return entries, err
}
