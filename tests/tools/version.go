package tools

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
)

// VersionTimeout is how long a program may take to say its version.
const VersionTimeout = 5 * time.Second

// versionArguments make a program print its version. The other programs have no such arguments, or a version of their own, as etcd has.
var versionArguments = map[string][]string{
	"kube-apiserver":          {"--version"},
	"kube-controller-manager": {"--version"},
	"kubectl":                 {"version", "--client"},
	"pulumi":                  {"version"},
}

var versionPattern = regexp.MustCompile(`v(\d+\.\d+\.\d+\S*)`)

// SaysVersion reports whether ProgramVersion can ask the named tool.
func SaysVersion(name string) bool { return versionArguments[name] != nil }

// ProgramVersion asks the program at the path, which is the named tool, for its version. The program runs without the user's home directory:
// what only works there, such as a script that looks for the real program, will not work for the tests and the demo.
func ProgramVersion(ctx context.Context, name, path string, timeout time.Duration) (semver.Version, error) {
	home, err := os.MkdirTemp("", "stack-controller-home-")
	if err != nil {
		return semver.Version{}, err
	}
	defer os.RemoveAll(home)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, versionArguments[name]...)
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

// asset returns the path of the tool in the directory KUBEBUILDER_ASSETS, and an empty string if it is not there, or not of the pinned minor
// version: people set the variable for other projects. If progress is not nil, it is called with the reason.
func asset(ctx context.Context, name string, progress func(string)) (string, error) {
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		return "", nil
	}
	path, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", nil //nolint:nilerr // it is not there, or cannot be used
	}
	if err := checkMinorVersion(ctx, name, path); err != nil {
		if progress != nil {
			progress(fmt.Sprintf("%-40s passed over: %s", path, err))
		}
		return "", nil
	}
	return path, nil
}

// checkMinorVersion returns an error if the program has another minor version than the pinned one. A program that cannot be asked has the
// version of the kube-apiserver next to it, as in the archives of envtest.
func checkMinorVersion(ctx context.Context, name, path string) error {
	if !SaysVersion(name) {
		name = "kube-apiserver"
		path = filepath.Join(filepath.Dir(path), name)
	}
	text, err := Version(name)
	if err != nil {
		return err
	}
	pinned, err := semver.Parse(strings.TrimPrefix(text, "v"))
	if err != nil {
		return fmt.Errorf("read the pinned version of %s: %w", name, err)
	}
	version, err := ProgramVersion(ctx, name, path, VersionTimeout)
	if err == nil && (version.Major != pinned.Major || version.Minor != pinned.Minor) {
		err = fmt.Errorf("%s is v%s, not v%d.%d", name, version, pinned.Major, pinned.Minor)
	}
	return err
}
