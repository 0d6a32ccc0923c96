package operation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	"github.com/stack-controller/stack-controller/internal/agent/cli"
	"github.com/stack-controller/stack-controller/internal/file"
)

const (
	// installTimeout bounds `pulumi install`: it may download an SDK and compile it.
	installTimeout = 30 * time.Minute
	// maxManifestSize bounds a file that is hashed, in bytes; lock files can be large.
	maxManifestSize = 64 << 20
	// maxWalked bounds the files and directories that are visited in the tree of the program.
	maxWalked = 50_000
	// maxAbove bounds the directories above the project that are searched for the manifests of a workspace.
	maxAbove = 8
)

// manifests are the files by which the package managers of Pulumi's languages decide what to install, as patterns.
var manifests = []string{
	"package.json", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "pnpm-workspace.yaml", "bun.lock", "bun.lockb",
	".npmrc", ".yarnrc", ".yarnrc.yml", ".nvmrc", ".node-version",
	"requirements*.txt", "requirements*.in", "constraints*.txt", "pyproject.toml", "poetry.lock", "uv.lock", "Pipfile", "Pipfile.lock", "setup.py", "setup.cfg",
	".python-version", "go.mod", "go.sum", "go.work", "go.work.sum",
	"*.csproj", "*.fsproj", "*.vbproj", "Directory.Build.props", "Directory.Packages.props", "packages.lock.json", "[Nn]u[Gg]et.[Cc]onfig", "global.json",
	"pom.xml", "build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts", "gradle.lockfile", "libs.versions.toml",
	".tool-versions", "mise.toml", "PulumiPlugin.yaml",
}

// installedDirs are directories that contain what is installed, not what to install.
var installedDirs = []string{"node_modules", "venv", ".venv", ".git", "__pycache__", "obj", "target", ".gradle"}

// install installs the dependencies of the program, if it has any and they are not installed yet.
//
// A digest over what `pulumi install` reads records what is installed. Running `pulumi install` for each commit would be simpler, but it
// takes 0.2 s when there is nothing to do, of the 0.5 s of an update, and a Python program would ask its package index for each commit, and
// could not be updated while the index is away. The file named after the digest lists the directories that held dependencies after the
// installation: if one of them is missing, the dependencies are installed again. Only the last installation is recorded, because it
// replaced what an earlier one had put into the same directories.
func (o *operation) install(ctx context.Context) error {
	if !o.runsProgram() || !o.project.needsInstall() {
		return nil
	}
	digest, err := o.installDigest()
	if err != nil {
		return projectInvalid("cannot read the dependencies of the program: %s", file.WithoutPath(err))
	}
	marker := filepath.Join(o.runner.dir("installed"), digest)
	if digest != "" && o.installed(marker) {
		return nil
	}
	// From here on, what was installed before may be replaced in part.
	if err := os.RemoveAll(filepath.Dir(marker)); err != nil {
		return fmt.Errorf("forget the last installation: %w", err)
	}
	o.report.update(func(op *agentpb.Operation) { op.Message = "installing dependencies" })
	res, err := o.helper(ctx, installTimeout, cli.Invocation{Args: o.project.installArguments(), Dir: o.dir})
	_, ended := errors.AsType[interrupted](err)
	switch {
	case err != nil && (ended || context.Cause(ctx) != nil):
		return err
	case err != nil: // It took too long.
		return failed(agentpb.FailureReason_FAILURE_REASON_INSTALL_FAILED, "%s", err)
	case res.Code != 0:
		f := classifyAs(res, agentpb.FailureReason_FAILURE_REASON_INSTALL_FAILED, "pulumi install")
		if text := installerText(res); text != "" && !strings.Contains(f.message, text) {
			f.message += ": " + text
		}
		return f
	case digest == "":
		return nil
	}
	return o.noteInstalled(marker)
}

// runsProgram reports whether the operation executes the program. Other operations get what they need from the state.
func (o *operation) runsProgram() bool {
	kind := o.kind()
	always := kind == agentpb.OperationKind_OPERATION_KIND_UP || kind == agentpb.OperationKind_OPERATION_KIND_PREVIEW
	return o.project.hasProgram() && (always || o.request.GetOptions().GetRunProgram())
}

// needsInstall reports whether `pulumi install` has something to do. A Pulumi YAML program has no dependencies except packages. The operation
// itself installs plugins that are named only in the program.
func (p *project) needsInstall() bool {
	return p.runtime != "yaml" || p.Packages != nil || p.runtimeOptions["compiler"] != nil
}

// installArguments leaves plugins to the operation if the project says where some of them are: `pulumi install` does not look there, and
// fails because it cannot download them.
func (p *project) installArguments() []string {
	if p.Plugins != nil {
		return []string{"install", "--no-plugins"}
	}
	return []string{"install"}
}

// installDigest returns a digest that identifies what is installed, the CLI that installs it, and the directory of plugins. It is empty if
// not everything can be read.
func (o *operation) installDigest() (string, error) {
	p, hash := o.project, sha256.New()
	named, err := yaml.Marshal([]any{o.runner.Version(), o.env["PULUMI_HOME"], p.Plugins, p.Packages, p.Runtime, p.Main})
	if err != nil {
		return "", err
	}
	hash.Write(named)
	if p.runtime == "yaml" {
		if p.runtimeOptions["compiler"] != nil {
			return "", nil // What a compiler makes of the program is not known.
		}
		return hex.EncodeToString(hash.Sum(nil)), nil
	}
	paths, err := findManifests(o.dir)
	if err != nil || len(paths) > maxWalked {
		return "", err
	}
	fmt.Fprintf(hash, "%q\n", o.dir)
	for _, path := range paths {
		content, err := file.Read(path, maxManifestSize)
		switch {
		case errors.Is(err, file.ErrTooLarge), errors.Is(err, file.ErrNotRegular):
			return "", nil
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
			continue
		case err != nil:
			return "", err
		}
		fmt.Fprintf(hash, "%q %x\n", path, sha256.Sum256(content))
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// findManifests returns the manifests in the tree of the program, and those of a workspace of a package manager in the directories above.
// If the tree is too large, it returns more than maxWalked paths.
func findManifests(root string) (paths []string, err error) {
	isManifest := func(name string) bool {
		return slices.ContainsFunc(manifests, func(pattern string) bool { matched, _ := filepath.Match(pattern, name); return matched })
	}
	walked := 0
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		walked++
		switch {
		case err != nil:
			return err
		case walked > maxWalked:
			paths = make([]string, walked)
			return fs.SkipAll
		case entry.IsDir() && path != root && slices.Contains(installedDirs, entry.Name()):
			return fs.SkipDir
		case !entry.IsDir() && isManifest(entry.Name()):
			paths = append(paths, path)
		}
		return nil
	})
	for dir, level := filepath.Dir(root), 0; err == nil && level < maxAbove; dir, level = filepath.Dir(dir), level+1 {
		entries, err := os.ReadDir(dir)
		if err != nil {
			break
		}
		for _, entry := range entries {
			if isManifest(entry.Name()) {
				paths = append(paths, filepath.Join(dir, entry.Name()))
			}
		}
	}
	return paths, err
}

func (o *operation) installed(marker string) bool {
	content, err := os.ReadFile(marker)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(content)) {
		if !isDirectory(filepath.Join(o.dir, strings.TrimSpace(line))) {
			return false
		}
	}
	return true
}

// noteInstalled writes the marker, with the directories that the installation may have filled.
func (o *operation) noteInstalled(marker string) error {
	candidates := []string{"node_modules", "venv", ".venv", "sdks"}
	if venv, ok := o.project.runtimeOptions["virtualenv"].(string); ok && filepath.IsLocal(venv) {
		candidates = append(candidates, venv)
	}
	for level := range maxAbove {
		candidates = append(candidates, strings.Repeat("../", level+1)+"node_modules")
	}
	var directories strings.Builder
	for _, dir := range candidates {
		if isDirectory(filepath.Join(o.dir, dir)) {
			fmt.Fprintln(&directories, dir)
		}
	}
	if err := os.MkdirAll(filepath.Dir(marker), 0o700); err != nil {
		return fmt.Errorf("note the installation: %w", err)
	}
	return file.Write(marker, []byte(directories.String()))
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
