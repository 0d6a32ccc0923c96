package operation

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/blang/semver"
	"golang.org/x/sys/unix"
)

// A volume of a workspace may be as old as the Workspace. Each version of a provider that was ever used is on it: Pulumi removes no plugin.

// diskFull matches the messages of failures that a full disk causes. A program may have such a message from elsewhere.
var diskFull = regexp.MustCompile(`(?i)no space left on device|` + regexp.QuoteMeta(eventsLost))

// minFree is how much room a volume has to have, in bytes, so that it does not count as full. The largest plugins have about that size, and what
// was written of the one for which there was no room is gone already.
const minFree = 1 << 30

// explainFullDisk adds to the message of a failure what can be done if the disk is full, and does what the agent can do: it removes old plugins.
func (o *operation) explainFullDisk(message string) string {
	if !diskFull.MatchString(message) {
		return message
	}
	// Where others run pulumi, they may use any plugin right now.
	if plugins := filepath.Join(o.runner.pulumiHome(), "plugins"); o.runner.options.ExclusiveHost && isFullVolume(plugins) {
		removed, err := removeOldPlugins(plugins)
		if err != nil {
			message += "; old plugins cannot be removed: " + err.Error()
		}
		if removed > 0 {
			return fmt.Sprintf("%s; the disk of the workspace is full: %d old plugins were removed, and the next attempt has more room", message, removed)
		}
	}
	return message + "; if the disk of the workspace is full, enlarge its volume, or delete the pod, which empties an emptyDir"
}

// isFullVolume reports whether the directory is on a volume, and not on the disk of the image, and whether that is full.
func isFullVolume(dir string) bool {
	var image, volume unix.Stat_t
	var space unix.Statfs_t
	if unix.Stat("/", &image) != nil || unix.Stat(dir, &volume) != nil || image.Dev == volume.Dev || unix.Statfs(dir, &space) != nil {
		return false
	}
	return int64(space.Bavail)*space.Bsize < minFree //nolint:gosec // no disk has so many blocks
}

// goneMark begins the name of a plugin that is being removed: one that is removed in part must not count as installed.
const goneMark = ".gone-"

// removeOldPlugins removes each plugin of which there is a newer version, and returns how many it removed. Pulumi downloads again what a stack
// still needs. Shared plugins take no room, and stay.
func removeOldPlugins(own string) (removed int, err error) {
	entries, err := os.ReadDir(own)
	if err != nil {
		return 0, err
	}
	newest := map[string]semver.Version{}
	for _, entry := range entries {
		plugin, version, ok := pluginOf(entry)
		if known, found := newest[plugin]; ok && (!found || version.GT(known)) {
			newest[plugin] = version
		}
	}
	for _, entry := range entries {
		path, gone := filepath.Join(own, entry.Name()), filepath.Join(own, goneMark+entry.Name())
		plugin, version, ok := pluginOf(entry)
		switch {
		case strings.HasPrefix(entry.Name(), goneMark):
			gone = path // It was left by an agent that was killed.
		case !ok || version.GTE(newest[plugin]) || hasLinks(path):
			continue
		default:
			if err := os.Rename(path, gone); err != nil {
				return removed, err
			}
		}
		if err := os.RemoveAll(gone); err != nil {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

// pluginOf returns the kind and name of the plugin that the directory has, and its version.
func pluginOf(entry os.DirEntry) (plugin string, version semver.Version, ok bool) {
	parts := pluginName.FindStringSubmatch(entry.Name())
	if parts == nil || !entry.IsDir() {
		return "", version, false
	}
	version, err := semver.Parse(parts[2])
	return parts[1], version, err == nil
}

// hasLinks reports whether the directory of a plugin has links, as that of a shared one, or cannot be read.
func hasLinks(path string) bool {
	entries, err := readDir(path, maxPluginEntries)
	for _, entry := range entries {
		if entry.Type()&os.ModeSymlink != 0 {
			return true
		}
	}
	return err != nil
}
