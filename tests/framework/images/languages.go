package images

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// languagesVariable is the environment variable with the path of a tarball of another image to use as the one of Languages. Its reference
// must be languagesReference.
const languagesVariable = "TEST_ASSET_LANGUAGES_IMAGE"

// languagesReference is the reference of the image of Languages.
const languagesReference = testRepository + "pulumi-languages:latest"

// dynamicProvider starts the provider whose resources a program for Node.js implements itself. It belongs to the language host.
const dynamicProvider = `#!/bin/sh
exec node "$(node -p 'require.resolve("@pulumi/pulumi/cmd/dynamic-provider")')" "$@"
`

// stubOfPython notes how it is called in /tmp/python-calls, and creates what "-m venv" creates.
const stubOfPython = `#!/bin/sh
echo "$(pwd): $(basename "$0") $*" >>/tmp/python-calls
case "$1 $2" in
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/python3" ;;
"-m pip") case "$3" in list) echo '[]' ;; esac ;;
*) echo "the stub of Python runs no program" >&2; exit 1 ;;
esac
`

// Languages returns the image of a workspace for real programs: stack-controller.test/pulumi-languages:latest. It is the image of Pulumi
// with the language hosts for Node.js, Go and Python, with Node.js, npm, yarn and pnpm, with Go, and with Pulumi's provider for Kubernetes. It
// has a stub in place of Python. If TEST_ASSET_LANGUAGES_IMAGE is set, its tarball is used, which may be that of Pulumi's own image.
func Languages(ctx context.Context, progress func(string)) (Image, error) {
	if tarball := os.Getenv(languagesVariable); tarball != "" {
		return Image{Reference: languagesReference, Tar: tarball, IsForeign: true}, nil
	}
	staging, err := os.MkdirTemp("", "languages-image-")
	if err != nil {
		return Image{}, fmt.Errorf("create a directory for the plugins of the languages image: %w", err)
	}
	defer os.RemoveAll(staging)
	if err := putKubernetesProvider(ctx, staging, progress); err != nil {
		return Image{}, err
	}
	c, err := pulumiContents(ctx, staging, progress)
	if err != nil {
		return Image{}, err
	}
	added := []func(context.Context, func(string)) (layer, error){golang, nodejs, languageHosts}
	for _, add := range added {
		l, err := add(ctx, progress)
		if err != nil {
			return Image{}, err
		}
		c.layers = append(c.layers, l)
	}
	c.references = []string{languagesReference}
	c.config.Env[0] = "PATH=/pulumi/bin:/usr/local/go/bin:" + shellPath
	return save(ctx, "languages", progress, c)
}

// putKubernetesProvider puts Pulumi's provider for Kubernetes into a PULUMI_HOME.
func putKubernetesProvider(ctx context.Context, pulumiHome string, progress func(string)) error {
	const name = "pulumi-resource-kubernetes"
	provider, err := tools.Path(ctx, name, progress)
	if err != nil {
		return err
	}
	dir := filepath.Join(pulumiHome, "plugins", "resource-kubernetes-v"+tools.KubernetesProviderVersion)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("put the provider for Kubernetes: %w", err)
	}
	return os.Symlink(provider, filepath.Join(dir, name))
}

// languageHosts returns the programs by which the CLI runs other programs.
func languageHosts(ctx context.Context, progress func(string)) (layer, error) {
	result := layer{directory("pulumi", 0o755, 0), directory("pulumi/bin", 0o755, 0)}
	for _, name := range []string{"pulumi-language-nodejs", "pulumi-language-go", "pulumi-language-python"} {
		host, err := tools.Path(ctx, name, progress)
		if err != nil {
			return nil, err
		}
		result = append(result, program("pulumi/bin/"+name, host, 0))
	}
	for name, content := range map[string]string{
		"pulumi/bin/pulumi-resource-pulumi-nodejs": dynamicProvider, "pulumi/bin/python3": stubOfPython,
		"pulumi/bin/pulumi-language-python-exec": "",
	} {
		script := textFile(name, content)
		script.mode = 0o755
		result = append(result, script)
	}
	slices.SortFunc(result[2:], func(a, b entry) int { return strings.Compare(a.path, b.path) })
	return result, nil
}

// nodejs returns Node.js with its package managers, and the shared libraries that it needs.
func nodejs(ctx context.Context, progress func(string)) (layer, error) {
	modules, err := tools.NodeModules(ctx, progress)
	if err != nil {
		return nil, err
	}
	found, err := filepath.Glob(filepath.Join(modules, "node-*", "bin", "node"))
	if err != nil || len(found) != 1 {
		return nil, fmt.Errorf("find Node.js for this machine in %s: %v: %w", modules, found, err)
	}
	result, err := sharedLibraries(ctx, found[0])
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{"usr/local", "usr/local/bin", "usr/local/lib", "usr/local/lib/node_modules"} {
		result = append(result, directory(dir, 0o755, 0))
	}
	result = append(result, program("usr/local/bin/node", found[0], 0))
	commands := map[string]string{
		"npm": "npm/bin/npm-cli.js", "npx": "npm/bin/npx-cli.js", "pnpm": "pnpm/bin/pnpm.cjs", "yarn": "yarn/bin/yarn.js",
	}
	for _, name := range []string{"npm", "pnpm", "yarn"} {
		target := path.Join("usr/local/lib/node_modules", name)
		files, err := copied(target, filepath.Join(modules, name), 0)
		if err != nil {
			return nil, fmt.Errorf("read the package manager %s: %w", name, err)
		}
		result = append(append(result, directory(target, 0o755, 0)), files...)
	}
	for _, name := range []string{"npm", "npx", "pnpm", "yarn"} {
		result = append(result, link("usr/local/bin/"+name, "/usr/local/lib/node_modules/"+commands[name]))
	}
	return result, nil
}

// library matches a line of ldd's output: the file that is loaded.
var library = regexp.MustCompile(`(?m)(?:=> |^\t)(/\S+) \(0x`)

// sharedLibraries returns the files of this machine that the program loads, and the program loader.
func sharedLibraries(ctx context.Context, binary string) (layer, error) {
	output, err := exec.CommandContext(ctx, "ldd", binary).Output()
	if err != nil {
		return nil, fmt.Errorf("find the shared libraries of %s: %w", binary, err)
	}
	var result layer
	known := map[string]bool{}
	for _, match := range library.FindAllStringSubmatch(string(output), -1) {
		file := match[1]
		for _, dir := range parents(strings.TrimPrefix(file, "/")) {
			if !known[dir] {
				known[dir] = true
				result = append(result, directory(dir, 0o755, 0))
			}
		}
		result = append(result, program(strings.TrimPrefix(file, "/"), file, 0))
	}
	return result, nil
}

// parents returns the directories above a relative path, the outermost first.
func parents(file string) (dirs []string) {
	for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
		dirs = append(dirs, dir)
	}
	slices.Reverse(dirs)
	return dirs
}

// golang returns the release of Go that builds the product, without what only its own tests need.
func golang(ctx context.Context, _ func(string)) (layer, error) {
	cmd := exec.CommandContext(ctx, "go", "env", "GOROOT")
	cmd.Dir = tools.RepositoryRoot()
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("find the release of Go: %w", err)
	}
	root := strings.TrimSpace(string(output))
	const target = "usr/local/go"
	result := layer{directory("usr/local", 0o755, 0), directory(target, 0o755, 0)}
	for _, name := range []string{"VERSION", "go.env"} {
		result = append(result, program(path.Join(target, name), filepath.Join(root, name), 0))
	}
	for _, name := range []string{"bin", "lib", "pkg", "src"} {
		files, err := copied(path.Join(target, name), filepath.Join(root, name), 0)
		if err != nil {
			return nil, fmt.Errorf("read the release of Go: %w", err)
		}
		result = append(append(result, directory(path.Join(target, name), 0o755, 0)), files...)
	}
	return result, nil
}
