package prebuilt

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/blang/semver"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// versionTimeout is how long a program may take to say its version.
const versionTimeout = 5 * time.Second

// versionArguments make a program print its version. The other programs have no such arguments.
var versionArguments = map[string][]string{
	"kube-apiserver":          {"--version"},
	"kube-controller-manager": {"--version"},
	"kubectl":                 {"version", "--client"},
	"pulumi":                  {"version"},
}

var versionPattern = regexp.MustCompile(`v(\d+\.\d+\.\d+\S*)`)

// versionOf asks the program for its version. The program runs without the user's home directory: what only works there, such as a script
// that looks for the real program, will not work for the demo.
func versionOf(ctx context.Context, tool, path string, timeout time.Duration) (semver.Version, error) {
	home, err := os.MkdirTemp("", "stack-controller-home-")
	if err != nil {
		return semver.Version{}, err
	}
	defer os.RemoveAll(home)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, versionArguments[tool]...)
	cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "PULUMI_SKIP_UPDATE_CHECK=true"}
	cmd.WaitDelay = time.Second
	output, err := cmd.Output()
	if err != nil {
		return semver.Version{}, fmt.Errorf("ask %s for its version: %w", path, err)
	}
	found := versionPattern.FindSubmatch(output)
	if found == nil {
		return semver.Version{}, fmt.Errorf("%s does not say its version", path)
	}
	return semver.Parse(string(found[1]))
}

// checkVersion returns an error if the tool in the directory says that it has another version than the pin. Etcd has its own version.
func (p *pin) checkVersion(ctx context.Context, tool, dir string) error {
	if versionArguments[tool] == nil {
		return nil
	}
	version, err := versionOf(ctx, tool, filepath.Join(dir, tool), versionTimeout)
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
		version, err := versionOf(ctx, name, path, f.versionTimeout)
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
