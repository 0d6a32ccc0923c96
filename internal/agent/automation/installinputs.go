package automation

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

const (
	// maxManifestSize bounds a file that is hashed, in bytes; lock files can be large.
	maxManifestSize = 64 << 20
	// maxWalked bounds the files that are looked at in the tree of the program.
	maxWalked = 50_000
	// maxAbove bounds the directories above the project that are looked at for the manifests of a workspace.
	maxAbove = 8
)

// manifests are the files by which the package managers of Pulumi's languages decide what to install, as patterns.
var manifests = []string{
	"package.json", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "pnpm-workspace.yaml", "bun.lock", "bun.lockb",
	".npmrc", ".yarnrc", ".yarnrc.yml", ".nvmrc", ".node-version",
	"requirements*.txt", "requirements*.in", "constraints*.txt", "pyproject.toml", "poetry.lock", "uv.lock", "Pipfile", "Pipfile.lock", "setup.py", "setup.cfg", ".python-version",
	"go.mod", "go.sum", "go.work", "go.work.sum",
	"*.csproj", "*.fsproj", "*.vbproj", "Directory.Build.props", "Directory.Packages.props", "packages.lock.json", "[Nn]u[Gg]et.[Cc]onfig", "global.json",
	"pom.xml", "build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts", "gradle.lockfile", "libs.versions.toml",
	".tool-versions", "mise.toml", "PulumiPlugin.yaml",
}

// installedDirs hold what is installed, not what to install.
var installedDirs = []string{"node_modules", "venv", ".venv", ".git", "__pycache__", "obj", "target", ".gradle"}

// installInputs are all that `pulumi install` reads of a program.
type installInputs struct {
	// project is the text of the parts of Pulumi.yaml that matter, files the digests of manifests by their path.
	project []string
	files   map[string]string
	// yaml says that the program is Pulumi YAML, which has no dependencies but packages.
	yaml bool
	// unknown says that not everything could be seen, so it has to be installed every time.
	unknown bool
	// scope is the directory when what is installed goes there; otherwise it goes to PULUMI_HOME.
	scope string
}

// nothing tells whether there is nothing to install.
func (i *installInputs) nothing() bool {
	return i.yaml && !i.unknown && len(i.project) == 0
}

// digest identifies the inputs, together with the CLI that installs and where it installs plugins to.
func (i *installInputs) digest(version, pulumiHome string) string {
	hash := sha256.New()
	fmt.Fprintf(hash, "%q %q %q %q\n", version, pulumiHome, i.scope, i.project)
	paths := make([]string, 0, len(i.files))
	for path := range i.files {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		fmt.Fprintf(hash, "%q %s\n", path, i.files[path])
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// findInstallInputs reads the inputs of the project's program.
func findInstallInputs(p *project) (*installInputs, error) {
	inputs := &installInputs{files: map[string]string{}, yaml: p.runtime == "yaml"}
	for _, key := range []string{"plugins", "packages"} {
		var value any
		// Decoded, it has what its aliases stand for.
		if node := resolvedValueOf(p.document, key); node == nil {
			continue
		} else if node.Decode(&value) != nil {
			inputs.unknown = true
		} else if value != nil {
			text, err := yaml.Marshal(value)
			if err != nil {
				return nil, err
			}
			inputs.project = append(inputs.project, key+": "+string(text))
		}
	}
	if inputs.yaml {
		return inputs, inputs.addYAML(p)
	}
	inputs.scope = p.dir
	inputs.project = append(inputs.project, fmt.Sprintf("runtime: %s %v main: %s", p.runtime, p.runtimeOptions, p.main))
	return inputs, inputs.addManifests(p.dir)
}

// addYAML adds the packages that a YAML program uses.
func (i *installInputs) addYAML(p *project) error {
	// What a compiler makes of the program cannot be seen here.
	i.unknown = p.runtimeOptions["compiler"] != nil
	documents := []*yaml.Node{p.document}
	entries, err := os.ReadDir(filepath.Join(p.dir, p.main))
	if err != nil {
		return withoutPath(err)
	}
	for _, entry := range entries {
		if !isYAMLProgram(entry.Name()) {
			continue
		}
		content, err := readBounded(filepath.Join(p.dir, p.main, entry.Name()), maxProjectSize)
		if err != nil {
			return fmt.Errorf("%s: %w", entry.Name(), withoutPath(err))
		}
		document, err := parseYAML(content)
		switch {
		case err != nil:
			// The CLI will say more about it, if it reads the file at all.
			i.unknown = true
		case document != nil:
			documents = append(documents, document)
		}
	}
	for _, use := range packageUses(documents...) {
		i.project = append(i.project, "uses: "+use)
	}
	return nil
}

// isYAMLProgram tells whether the name is one of a program's files, beside the project itself and the configuration of stacks.
func isYAMLProgram(name string) bool {
	extension := filepath.Ext(name)
	return (extension == ".yaml" || extension == ".yml") && !strings.HasPrefix(name, "Pulumi.")
}

// addManifests hashes the manifests in the tree of the program, and those of a workspace in the directories above it.
func (i *installInputs) addManifests(root string) error {
	walked := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return withoutPath(err)
		}
		if walked++; walked > maxWalked {
			i.unknown = true
			return fs.SkipAll
		}
		if entry.IsDir() {
			if path != root && slices.Contains(installedDirs, entry.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		return i.addFile(root, path)
	})
	if err != nil {
		return err
	}
	dir := root
	for range maxAbove {
		parent := filepath.Dir(dir)
		if parent == dir {
			break
		}
		dir = parent
		entries, err := os.ReadDir(dir)
		if err != nil {
			break
		}
		for _, entry := range entries {
			if err := i.addFile(root, filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// addFile hashes the file when it is a manifest.
func (i *installInputs) addFile(root, path string) error {
	name := filepath.Base(path)
	if !slices.ContainsFunc(manifests, func(pattern string) bool { matched, _ := filepath.Match(pattern, name); return matched }) {
		return nil
	}
	content, err := readBounded(path, maxManifestSize)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		i.unknown = true
		return nil
	}
	relative, err := filepath.Rel(root, path)
	if err != nil {
		return err
	}
	digest := sha256.Sum256(content)
	i.files[relative] = hex.EncodeToString(digest[:])
	return nil
}

// dependencyDirs are the directories, relative to the project, that an installation may have filled.
func dependencyDirs(p *project) []string {
	dirs := []string{"node_modules", "venv", ".venv", "sdks"}
	if venv, ok := p.runtimeOptions["virtualenv"].(string); ok && filepath.IsLocal(venv) {
		dirs = append(dirs, venv)
	}
	above := "."
	for range maxAbove {
		above = filepath.Join(above, "..")
		dirs = append(dirs, filepath.Join(above, "node_modules"))
	}
	return dirs
}
