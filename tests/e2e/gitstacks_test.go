package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/gomega"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/gitserver"
)

// repository creates one with the name of the Stack, and returns its commit.
func (p *play) repository(files gitserver.Files) (repository *gitserver.Repository, sha string) {
	p.Helper()
	repository, sha, err := system.Git.Create(p.Name, files)
	p.Succeed(err)
	return repository, sha
}

// commit pushes the files, and returns the commit.
func (p *play) commit(repository *gitserver.Repository, files gitserver.Files) (sha string) {
	p.Helper()
	sha, err := repository.Commit(files)
	p.Succeed(err)
	return sha
}

// gitStack is a Stack that follows the main branch of a git repository.
func (p *play) gitStack(url string, changes ...func(*pulumiv1.Stack)) *pulumiv1.Stack {
	stack := p.newStack()
	stack.Spec.FluxSource = nil
	stack.Spec.GitSource = pulumiv1.GitSource{ProjectRepo: url, Branch: gitserver.Branch}
	for _, change := range changes {
		change(stack)
	}
	return stack
}

// named gives a Stack beside the one of the play its name.
func named(name string) func(*pulumiv1.Stack) {
	return func(s *pulumiv1.Stack) { s.Name, s.Spec.Stack = name, name }
}

// deployedFromGit creates a repository with the files and a Stack that follows it, changed as told, and waits until it is Ready.
func (p *play) deployedFromGit(files gitserver.Files, changes ...func(*pulumiv1.Stack)) (repository *gitserver.Repository, sha string) {
	p.Helper()
	repository, sha = p.repository(files)
	p.enter(p.gitStack(repository.URL, changes...))
	p.Await(ready(sha))
	return repository, sha
}

// historyEntry is what pulumi keeps of an update.
type historyEntry struct {
	Message     string
	Environment map[string]string
}

// history returns what the backend keeps of the updates of the stack, the oldest first.
func (p *play) history() (entries []historyEntry) {
	p.Helper()
	pattern := filepath.Join(strings.TrimPrefix(system.BackendURL, "file://"), ".pulumi", "history", p.Name, "dev", "*.history.json")
	files, err := filepath.Glob(pattern)
	p.Succeed(err)
	slices.Sort(files) // they have the time in their names
	for _, file := range files {
		content, err := os.ReadFile(file)
		p.Succeed(err)
		var entry historyEntry
		p.Expect(json.Unmarshal(content, &entry)).To(Succeed())
		entries = append(entries, entry)
	}
	return entries
}
