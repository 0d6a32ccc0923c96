package operation

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/stack-controller/stack-controller/internal/file"
	"github.com/stack-controller/stack-controller/internal/procfs"
)

const (
	// maxManifestSize bounds a file that is hashed, in bytes; lock files can be large.
	maxManifestSize = 64 << 20
	// maxWalked bounds the files and directories that are visited for one program.
	maxWalked = 50_000
	// maxAbove bounds the directories above the project that are searched for the manifests of a workspace.
	maxAbove = 8
	// maxNoted bounds the directories that the record of an installation has.
	maxNoted = 1000
)

// manifests are the files by which the package managers of Pulumi's languages decide what to install, as patterns.
var manifests = []string{
	"package.json", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "pnpm-workspace.yaml", "bun.lock", "bun.lockb",
	".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", ".pnpmfile.mjs", "package.yaml", "bunfig.toml", "*.patch", ".nvmrc", ".node-version",
	"requirements*.txt", "requirements*.in", "constraints*.txt", "pyproject.toml", "poetry.lock", "uv.lock", "pylock.toml", "pylock.*.toml",
	"Pipfile", "Pipfile.lock", "setup.py", "setup.cfg",
	"pip.conf", "uv.toml", "poetry.toml", ".python-version", "go.mod", "go.sum", "go.work", "go.work.sum",
	"*.csproj", "*.fsproj", "*.vbproj", "Directory.Build.props", "Directory.Packages.props", "packages.lock.json", "[Nn]u[Gg]et.[Cc]onfig", "global.json",
	"pom.xml", "build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts", "gradle.lockfile", "libs.versions.toml",
	".tool-versions", "mise.toml", "PulumiPlugin.yaml",
}

// uvEnvironment is the variable with the directory of the virtual environment that uv makes.
const uvEnvironment = "UV_PROJECT_ENVIRONMENT"

// installedDirs are directories that contain what is installed, not what to install.
var installedDirs = []string{"node_modules", "venv", ".venv", ".git", "__pycache__", "obj", "target", ".gradle"}

// installDigest returns a digest that identifies what is installed, the CLI that installs it, and the directory of plugins. It is empty if
// not everything can be read.
func (o *operation) installDigest() (string, error) {
	p, hash := o.project, sha256.New()
	named, err := yaml.Marshal([]any{o.runner.Version(), o.env["PULUMI_HOME"], o.env[uvEnvironment], p.Plugins, p.Packages, p.Runtime, p.Main})
	if err != nil {
		return "", err
	}
	hash.Write(named)
	if p.runtime == "yaml" && p.runtimeOptions["compiler"] != nil {
		return "", nil // What a compiler makes of the program is not known.
	}
	files := &dependencyFiles{paths: map[string]bool{}}
	for _, dir := range p.localPackages() {
		files.tree(filepath.Join(o.dir, dir))
	}
	if p.runtime != "yaml" {
		fmt.Fprintf(hash, "%q\n", o.dir)
		files.manifests(o.dir)
	}
	if files.err != nil || files.walked > maxWalked {
		return "", files.err
	}
	for _, path := range slices.Sorted(maps.Keys(files.paths)) {
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

// localPackages returns the directories, relative to the project, of the packages that Pulumi.yaml has by their path. What is installed for them
// depends on all of their files: the SDK is generated from the component.
func (p *project) localPackages() (dirs []string) {
	packages, _ := p.Packages.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		source, isText := packages[name].(string)
		if object, isObject := packages[name].(map[string]any); isObject {
			source, isText = object["source"].(string)
		}
		if isText && (strings.HasPrefix(source, "./") || strings.HasPrefix(source, "../")) {
			dirs = append(dirs, source)
		}
	}
	return dirs
}

// dependencyFiles collects the files that decide what is installed.
type dependencyFiles struct {
	paths  map[string]bool
	walked int
	// err is the first error. Nothing is collected after it, or after maxWalked files and directories.
	err error
}

func isManifest(name string) bool {
	return slices.ContainsFunc(manifests, func(pattern string) bool { matched, _ := filepath.Match(pattern, name); return matched })
}

// manifests adds the manifests in the tree of the program, those of a workspace of a package manager in the directories above, and what they
// include.
func (f *dependencyFiles) manifests(root string) {
	f.walk(root, isManifest)
	for dir, level := filepath.Dir(root), 0; level < maxAbove; dir, level = filepath.Dir(dir), level+1 {
		entries, err := os.ReadDir(dir)
		if err != nil {
			break
		}
		for _, entry := range entries {
			if isManifest(entry.Name()) {
				f.paths[filepath.Join(dir, entry.Name())] = true
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(f.paths)) {
		if name := filepath.Base(path); strings.HasPrefix(name, "requirements") && !strings.HasSuffix(name, ".toml") {
			f.included(path)
		}
	}
}

// tree adds all files of a directory but what is installed there.
func (f *dependencyFiles) tree(root string) { f.walk(root, func(string) bool { return true }) }

func (f *dependencyFiles) walk(root string, wanted func(name string) bool) {
	if f.err != nil {
		return
	}
	f.err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		f.walked++
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case f.walked > maxWalked:
			return fs.SkipAll
		case entry.IsDir() && path != root && slices.Contains(installedDirs, entry.Name()):
			return fs.SkipDir
		case entry.Type().IsRegular() && wanted(entry.Name()):
			f.paths[path] = true
		}
		return nil
	})
}

// included adds the files that a file with requirements of pip includes, and the directories that it installs a copy of. Of one that is installed
// as editable, only the manifests matter.
func (f *dependencyFiles) included(path string) {
	if f.walked++; f.err != nil || f.walked > maxWalked {
		return
	}
	content, err := file.Read(path, maxManifestSize)
	if err != nil {
		return // installDigest finds that, too
	}
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Buffer(nil, maxManifestSize); lines.Scan(); {
		words := strings.Fields(strings.NewReplacer("=", " ", ";", " ", "[", " ").Replace(lines.Text()))
		if len(words) == 0 {
			continue
		}
		if slices.Contains([]string{"-r", "--requirement", "-c", "--constraint"}, words[0]) && len(words) > 1 {
			if other := filepath.Join(filepath.Dir(path), words[1]); !f.paths[other] {
				f.paths[other] = true
				f.included(other)
			}
			continue
		}
		local := strings.TrimPrefix(words[0], "file:")
		isPath := (strings.HasPrefix(local, ".") || strings.Contains(local, "/")) && !strings.Contains(local, "://")
		if dir := filepath.Join(filepath.Dir(path), local); isPath && isDirectory(dir) {
			f.tree(dir)
		}
	}
}

// installed reports whether what the digest stands for is installed. The record of an installation has a line for the container in which it was
// made, and one for each directory in which dependencies were then. If one of them is missing, or is a link that it was not, they are installed
// again: npm replaces the link to a mount by a directory, and the next source has the link. Without any, they are somewhere in the container, and
// gone with it.
func (o *operation) installed(digest string) bool {
	content, err := os.ReadFile(filepath.Join(o.runner.dir("installed"), digest))
	if err != nil {
		return false
	}
	container, directories, _ := strings.Cut(string(content), "\n")
	for line := range strings.Lines(directories) {
		dir, wasLink := strings.CutPrefix(strings.TrimSpace(line), linkMark)
		if path := filepath.Join(o.dir, dir); !isDirectory(path) || isLink(path) != wasLink {
			return false
		}
	}
	return directories != "" || container == containerID()
}

// containerID identifies the container in which the agent runs: it begins with its first process.
func containerID() string {
	boot, _ := procfs.BootID()
	first, err := procfs.ReadStat(1)
	if err != nil {
		return boot
	}
	return fmt.Sprintf("%s %d", boot, first.StartTime)
}

// noteInstalled records the installation of what the digest stands for. An installation may write manifests, such as a lock file: neither the same
// files nor those that it leaves need another one.
func (o *operation) noteInstalled(digest string, before map[string]bool) error {
	// Several projects may share what is installed above them. That is gone with the source as well.
	candidates, shared := []string{"sdks"}, []string{"node_modules", "venv", ".venv"}
	if venv := o.env[uvEnvironment]; venv != "" && !filepath.IsAbs(venv) {
		shared = append(shared, venv)
	}
	if venv, _ := o.project.runtimeOptions["virtualenv"].(string); venv != "" && !filepath.IsAbs(venv) {
		candidates = append(candidates, venv)
	}
	for level := range maxAbove + 1 {
		for _, name := range shared {
			candidates = append(candidates, strings.Repeat("../", level)+name)
		}
	}
	for dir := range o.directories() {
		if !before[dir] && len(candidates) < maxNoted {
			candidates = append(candidates, dir)
		}
	}
	record := strings.Builder{}
	fmt.Fprintln(&record, containerID())
	for _, dir := range candidates {
		switch path := filepath.Join(o.dir, dir); {
		case isLink(path) && isDirectory(path):
			fmt.Fprintln(&record, linkMark+dir)
		case isDirectory(path):
			fmt.Fprintln(&record, dir)
		}
	}
	if err := os.MkdirAll(o.runner.dir("installed"), 0o700); err != nil {
		return fmt.Errorf("note the installation: %w", err)
	}
	digests := []string{digest}
	if left, err := o.installDigest(); err == nil && left != "" && left != digest {
		digests = append(digests, left)
	}
	for _, digest := range digests {
		if err := file.Write(filepath.Join(o.runner.dir("installed"), digest), []byte(record.String())); err != nil {
			return err
		}
	}
	return nil
}

// directories returns the directories of a program for Node.js, relative to the project: scripts of its packages may build more of them, which are
// not in the next commit. It does not look into what package managers install, nor at hidden ones, which are their caches.
func (o *operation) directories() map[string]bool {
	found := map[string]bool{}
	if o.project.runtime != "nodejs" && o.project.runtime != "bun" {
		return found
	}
	walked := 0
	_ = filepath.WalkDir(o.dir, func(path string, entry fs.DirEntry, err error) error {
		walked++
		switch {
		case err != nil, walked > maxWalked:
			return fs.SkipAll
		case !entry.IsDir() || path == o.dir:
			return nil
		case slices.Contains(installedDirs, entry.Name()), strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		}
		relative, err := filepath.Rel(o.dir, path)
		found[relative] = err == nil
		return err
	})
	return found
}

// linkMark begins the line of a directory that is a link.
const linkMark = "link:"

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().Type() == fs.ModeSymlink
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
