package operation_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	runner "github.com/stack-controller/stack-controller/internal/agent/operation"
)

// installing is a fixture whose CLI is a script that only installs, as far as the commands say. The returned function runs a preview, and expects that
// it installs or not.
func installing(t *testing.T, commands string, change ...func(*runner.Options)) (f *fixture, expect func(installed bool, why string)) {
	f = newFixture(t, change...)
	f.writeCLI(fmt.Appendf(nil, "#!/bin/sh\necho $@ >> %q\ncase \"$*\" in *install*) %s;; esac\n", f.commands, commands))
	return f, func(installed bool, why string) {
		t.Helper()
		f.run(preview)
		f.Expect(strings.HasPrefix(f.processes()[0], "install")).To(Equal(installed), why)
	}
}

// commit replaces the files of the project by those of another commit, but keeps the directories.
func (f *fixture) commit(files map[string]string, kept ...string) {
	f.t.Helper()
	next := f.t.TempDir()
	for _, dir := range kept {
		f.Expect(os.MkdirAll(filepath.Dir(filepath.Join(next, dir)), 0o700)).To(Succeed())
		f.Expect(os.Rename(filepath.Join(f.project, dir), filepath.Join(next, dir))).To(Succeed())
	}
	f.Expect(os.RemoveAll(f.project)).To(Succeed())
	f.Expect(os.Rename(next, f.project)).To(Succeed())
	for name, content := range files {
		f.write(name, content)
	}
}

func TestWhatScriptsOfPackagesBuildIsBuiltAgain(t *testing.T) {
	f, expect := installing(t, "mkdir -p node_modules sdks/gke/bin .yarn/cache")
	files := map[string]string{"Pulumi.yaml": "name: demo\nruntime: nodejs\n", "package.json": "{}", "sdks/gke/package.json": `{"main": "bin/index.js"}`}
	f.commit(files)
	expect(true, "the first time")
	expect(false, "nothing changed")
	f.commit(files, "node_modules")
	expect(true, "bin came from the installation, and is not in the commit")
	expect(false, "it is there again")
}

func TestDirectoryThatIsALinkAgainIsInstalledAgain(t *testing.T) {
	f, expect := installing(t, "rm -f node_modules; mkdir -p node_modules") // npm replaces links
	files := map[string]string{"Pulumi.yaml": "name: demo\nruntime: nodejs\n", "package.json": "{}"}
	mounted := t.TempDir()
	for _, revision := range []string{"the first revision", "the next one"} {
		f.commit(files)
		f.Expect(os.Symlink(mounted, filepath.Join(f.project, "node_modules"))).To(Succeed())
		expect(true, revision)
		expect(false, "nothing changed since "+revision)
	}
}

func TestVirtualEnvironmentAboveTheProjectIsInstalledAgainWhenItIsGone(t *testing.T) {
	for name, test := range map[string]struct {
		options, variable, made string
	}{
		"of the project":             {options: "{virtualenv: ../env}", made: "../env"},
		"of the project, outside":    {options: "{virtualenv: ../../shared/env}", made: "../../shared/env"},
		"that is found by its name":  {options: "{toolchain: uv}", made: "../.venv"},
		"of uv, in the project":      {options: "{toolchain: uv}", variable: ".venv-pulumi", made: ".venv-pulumi"},
		"of uv, of a workspace":      {options: "{toolchain: uv}", variable: "env", made: "../../env"},
		"that stays, in the project": {options: "{virtualenv: env}", made: "env"},
	} {
		t.Run(name, func(t *testing.T) {
			f, expect := installing(t, "mkdir -p "+test.made, func(options *runner.Options) {
				options.Environ = append(options.Environ, "UV_PROJECT_ENVIRONMENT="+test.variable)
			})
			f.project = filepath.Join(f.project, "infra", "vpc")
			files := map[string]string{"Pulumi.yaml": "name: demo\nruntime: {name: python, options: " + test.options + "}\n", "requirements.txt": "requests"}
			f.Expect(os.MkdirAll(f.project, 0o700)).To(Succeed())
			f.commit(files)
			expect(true, "the first time")
			expect(false, "nothing changed")
			f.commit(files)
			f.Expect(os.RemoveAll(filepath.Join(f.project, test.made))).To(Succeed())
			expect(true, "it is gone with the source before")
			expect(false, "it is there again")
		})
	}
}

func TestInstallationThatWritesALockFileIsNotRepeated(t *testing.T) {
	f, expect := installing(t, "mkdir -p node_modules; echo {} > package-lock.json")
	files := map[string]string{"Pulumi.yaml": "name: demo\nruntime: nodejs\n", "package.json": "{}"}
	f.commit(files)
	expect(true, "the first time")
	expect(false, "the lock file came from the installation")
	f.commit(files, "node_modules")
	expect(false, "the next commit has none")
	f.write("package-lock.json", `{"lockfileVersion": 3}`)
	expect(true, "a lock file of somebody")
}

func TestLocalPackagesAreInstalledWhenTheyChange(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		// changes matter, in this order; other does not.
		changes []string
		other   string
	}{
		"requirements": {
			files: map[string]string{"Pulumi.yaml": "name: demo\nruntime: python\n", "__main__.py": "", "requirements.txt": "-r deploy/prod.txt\n./lib  # ours\n-e ./editable\nhttps://example.com/x.whl\n",
				"deploy/prod.txt": "requests==1", "lib/setup.py": "", "lib/network.py": "1", "editable/a.py": ""},
			changes: []string{"lib/network.py", "deploy/prod.txt", "uv.toml", "pylock.toml"}, other: "editable/a.py",
		},
		"a component of a YAML program": {
			files:   map[string]string{"Pulumi.yaml": "name: demo\nruntime: yaml\npackages: {vpc: ./vpc}\n", "vpc/package.json": "{}", "vpc/index.ts": ""},
			changes: []string{"vpc/package.json", "vpc/index.ts"}, other: "README.md",
		},
		"a component in another language": {
			files:   map[string]string{"Pulumi.yaml": "name: demo\nruntime: nodejs\npackages:\n  vpc: {source: ./vpc}\n", "package.json": "{}", "vpc/main.go": "", "index.ts": ""},
			changes: []string{"vpc/main.go", "patches/react.patch", "bunfig.toml", ".pnpmfile.mjs"}, other: "index.ts",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, expect := installing(t, "mkdir -p node_modules venv")
			f.commit(test.files)
			expect(true, "the first time")
			expect(false, "nothing changed")
			for _, file := range test.changes {
				f.write(file, "changed")
				expect(true, file)
			}
			expect(false, "nothing changed")
			f.write(test.other, "changed")
			expect(false, test.other)
		})
	}
}

func TestWhatIsInstalledInTheContainerIsGoneWithIt(t *testing.T) {
	f, expect := installing(t, "true")
	f.commit(map[string]string{"Pulumi.yaml": "name: demo\nruntime: python\n", "__main__.py": "", "requirements.txt": "requests"})
	expect(true, "the first time")
	expect(false, "nothing changed")
	records, err := filepath.Glob(filepath.Join(f.home, ".automation", "installed", "*"))
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(records).To(HaveLen(1))
	content, err := os.ReadFile(records[0])
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(os.WriteFile(records[0], append([]byte("another "), content...), 0o600)).To(Succeed())
	expect(true, "pip may have installed into the container")
}

func TestTemporaryFilesOfKilledProcessesAreRemoved(t *testing.T) {
	f := newFixture(t)
	left := filepath.Join(f.home, "tmp", "go-build1", "b001")
	for _, exclusive := range []bool{false, true} {
		f.Expect(os.MkdirAll(left, 0o700)).To(Succeed())
		f.options.ExclusiveHost = exclusive
		f.restart()
		f.Expect(filepath.Join(f.home, "tmp")).To(BeADirectory())
		if exclusive {
			f.Expect(left).NotTo(BeADirectory())
		} else {
			f.Expect(left).To(BeADirectory(), "an earlier process may still live")
		}
	}
}
