package prebuilt

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/blang/semver"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// downloadedTimeout is how long a program that was downloaded may take to say its version: the demo is compiled at the same time, and there is no
// other program to take.
const downloadedTimeout = 2 * time.Minute

// checkVersion returns an error if the tool in the directory says that it has another version than the pin. Etcd has its own version.
func (p *pin) checkVersion(ctx context.Context, tool, dir string) error {
	if !tools.SaysVersion(tool) {
		return nil
	}
	version, err := tools.ProgramVersion(ctx, tool, filepath.Join(dir, tool), downloadedTimeout)
	if err == nil && "v"+version.String() != p.version {
		err = fmt.Errorf("it says that it is v%s, not %s", version, p.version)
	}
	return err
}

// searchPath adds the paths of the programs that the user has installed, if they will do.
func (f *Finder) searchPath(ctx context.Context, names []string, paths map[string]string) {
	for _, name := range names {
		if paths[name] != "" { // found beside another
			continue
		}
		check, searched := acceptable[name]
		if !searched {
			continue
		}
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		version, err := tools.ProgramVersion(ctx, name, path, f.versionTimeout)
		if err != nil {
			f.progress(fmt.Sprintf("%-40s passed over: %s", path, err))
			continue
		}
		if problem := check(version); problem != "" {
			f.progress(fmt.Sprintf("%-40s passed over: %s", path, problem))
			continue
		}
		if name == "pulumi" {
			host := filepath.Join(filepath.Dir(path), languageHost)
			if _, err := exec.LookPath(host); err != nil {
				f.progress(fmt.Sprintf("%-40s passed over: it has no %s beside it", path, languageHost))
				continue
			}
			paths[languageHost] = host
		}
		paths[name] = path
		f.progress(fmt.Sprintf("%-40s yours: %s", name+" v"+version.String(), path))
	}
}

const languageHost = "pulumi-language-yaml"

// acceptable has, for each program that is searched on PATH, what is wrong with a version, or an empty string.
var acceptable = map[string]func(semver.Version) string{
	"pulumi": func(version semver.Version) string {
		oldest := pinned("pulumi-oldest")
		if version.LT(oldest) || version.Major > oldest.Major {
			return fmt.Sprintf("v%s is not between v%s and the next major version", version, oldest)
		}
		return ""
	},
	"kubectl": func(version semver.Version) string {
		server := pinned("kube-apiserver")
		if version.Major != server.Major || version.Minor+1 < server.Minor || version.Minor > server.Minor+1 {
			return fmt.Sprintf("v%s is more than one minor version away from v%s", version, server)
		}
		return ""
	},
}

// pinned returns the version of the tool's module.
func pinned(tool string) semver.Version {
	version, err := tools.Version(tool)
	if err != nil {
		return semver.Version{}
	}
	parsed, err := semver.Parse(strings.TrimPrefix(version, "v"))
	if err != nil {
		return semver.Version{}
	}
	return parsed
}
